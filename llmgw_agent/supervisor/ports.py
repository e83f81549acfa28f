"""Ports for engines: bind-tested just before the launch."""

import socket
import zlib


def is_free(host: str, port: int) -> bool:
    """Say whether a server could listen on host:port now (as engines do, with SO_REUSEADDR)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def choose(
    host: str, proposed: int, band: tuple[int, int], taken: set[int], seed: str
) -> int | None:
    """Return the proposed port if it is free, else another of the band; None if none is.

    `seed` decides in which order the band is tried, so that two shards rarely try the same.
    """
    low, high = band
    size = high - low + 1
    first = zlib.crc32(seed.encode()) % size
    others = [low + (first + i) % size for i in range(size)]
    candidates = [proposed, *others] if low <= proposed <= high else others
    return next((p for p in candidates if p not in taken and is_free(host, p)), None)
