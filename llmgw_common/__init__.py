"""Words that server and agent share; imports neither of them.

Ids, clock, units, errors, states, catalog documents, wire messages, the admin API
models and client, and the operator's command line.
"""
