"""Texts that came from elsewhere, made safe for a terminal; and times as people read them.

Rule: nothing that a server, an engine or a model sent reaches the terminal with control characters
in it: an escape sequence could move the cursor, set the title or answer in the operator's name.
"""

import re
from datetime import datetime
from typing import Final

#: Whole escape sequences (ECMA-48: CSI, OSC and the two-character ones), so that no rest is left.
_ESCAPE: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[@-Z\\^_])"
)
#: C0 without tab and line feed, DEL, C1, and what turns the direction of text around.
_CONTROL: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def plain(text: str) -> str:
    """Return `text` without escape sequences and control characters; tabs and lines stay."""
    return _CONTROL.sub("", _ESCAPE.sub("", text))


def one_line(text: str) -> str:
    """Return `text` as `plain` does, with its lines joined by spaces."""
    return " ".join(plain(text).split("\n")).replace("\t", " ")


def short_duration(seconds: float) -> str:
    """Return about two digits of a duration: "4s", "12m", "3h", "5d"; below zero is "0s"."""
    whole = max(int(seconds), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= 2 * size or (whole >= size and unit == "d"):
            return f"{whole // size}{unit}"
    return f"{whole}s"


def age(at: datetime | None, now: datetime) -> str:
    """Return how long ago `at` was, "-" if it never was."""
    return "-" if at is None else short_duration((now - at).total_seconds())
