"""Addresses, as both programs judge them."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Say whether a host name or address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
