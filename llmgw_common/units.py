"""Durations and sizes as people write them: "15m", "1h30m", "80GiB"; and back.

`Duration` (seconds, float) and `Bytes` (int) are the annotations for configuration and catalog
fields. A bare number is seconds, or bytes.
"""

import math
import re
from typing import Annotated, Final

from pydantic import BeforeValidator

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
#: Longer numbers are no time and no size that anybody means.
_DIGITS: Final = r"([0-9]{1,15}(?:\.[0-9]{1,9})?)"
_PLAIN: Final = re.compile(_DIGITS)
_DURATION_PART: Final = re.compile(_DIGITS + r"(ms|s|m|h|d)")
_SIZE: Final = re.compile(_DIGITS + r"\s*([a-z]*)", re.IGNORECASE)
_LARGEST: Final = 10**18


def parse_duration(value: object) -> float:
    """Return seconds for 30, "30", "30s", "1h30m" or "500ms".

    Raises:
        ValueError: it is none of these, or negative.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not (math.isfinite(value) and 0 <= value <= _LARGEST):
            raise ValueError("a duration is a number of seconds, not negative and not endless")
        return float(value)
    if isinstance(value, str):
        text = value.strip().lower()
        if _PLAIN.fullmatch(text):
            return float(text)
        parts = _DURATION_PART.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    raise ValueError(f"{value!r} is no duration: write it like 30s, 15m or 1h30m")


def parse_bytes(value: object) -> int:
    """Return bytes for 4096, "512MiB" or "80 GB" (GB is 10**9, GiB is 2**30).

    Raises:
        ValueError: it is none of these, or negative.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= _LARGEST:
            raise ValueError("a size is a number of bytes, not negative and below 2**60")
        return value
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match and (match[2].lower() or "b") in _BYTES:
            return int(float(match[1]) * _BYTES[match[2].lower() or "b"])
    raise ValueError(f"{value!r} is no size: write it like 512MiB or 80GiB")


def format_duration(seconds: float) -> str:
    """Return the shortest exact text of whole milliseconds, like "1h30m" or "500ms"."""
    left_ms = round(seconds * 1000)
    if left_ms == 0:
        return "0s"
    text = ""
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        count, left_ms = divmod(left_ms, size_ms)
        text += f"{count}{unit}" if count else ""
    return text + (f"{left_ms}ms" if left_ms else "")


def format_bytes(n_bytes: int) -> str:
    """Return a short text with at most one decimal, like "93.8 MiB"; for people only."""
    size = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


Duration = Annotated[float, BeforeValidator(parse_duration)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
