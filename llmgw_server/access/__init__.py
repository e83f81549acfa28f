"""Who may do what: API keys, join tokens, node credentials, and this server's term.

Texts of keys and tokens are shown once and never kept: only their SHA-256 is.
"""
