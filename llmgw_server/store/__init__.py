"""What must survive: catalog revisions, keys, nodes, join tokens, events, usage, the term.

database.py opens it (SQLite in WAL mode, or another database by URL), tables.py is the schema as of
the newest migration, and one file a story implements the Protocols of those who use it. Only the
composition root imports this package.
"""
