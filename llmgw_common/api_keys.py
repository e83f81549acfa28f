"""The text of an API key, and what is stored of it.

`llmgw-` + 43 characters (256 random bits) + 7 characters checksum. The checksum lets scanners find
leaked keys and lets a typo cost no look-up. Stored is only the SHA-256: at 256 random bits a slow
hash would protect nothing more.
"""

import base64
import hashlib
import re
import zlib
from typing import Final

from llmgw_common.mint import new_secret

PREFIX: Final = "llmgw-"
_SHAPE: Final = re.compile(r"llmgw-[A-Za-z0-9_-]{43}[a-z2-7]{7}")


def mint_key() -> str:
    """Return the text of a new key."""
    body = new_secret(32)
    return f"{PREFIX}{body}{_checksum(body)}"


def looks_valid(text: str) -> bool:
    """Say whether the text has the shape and checksum of a key."""
    if not _SHAPE.fullmatch(text):
        return False
    body = text[len(PREFIX) : -7]
    return text[-7:] == _checksum(body)


def digest(text: str) -> bytes:
    """Return what is stored of a key and looked up by: its SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _checksum(body: str) -> str:
    crc = zlib.crc32(body.encode()).to_bytes(4, "big")
    return base64.b32encode(crc).decode().rstrip("=").lower()
