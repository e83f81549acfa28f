"""One agent a machine: reports the hardware, fetches weights, installs and supervises engines.

Read app.py first; the story of one shard is in supervisor/.
"""

__version__ = "0.1.0"
