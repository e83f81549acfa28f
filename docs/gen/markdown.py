"""Small pieces of Markdown."""

import inspect
import re
from collections.abc import Iterable, Sequence

_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*)$")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are escaped."""
    lines = [_row(head), "|" + " --- |" * len(head)]
    lines += [_row([_cell(cell) for cell in row]) for row in rows]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """Return text as code, or nothing for an empty text."""
    return f"`{text}`" if text else ""


def summary(documented: object) -> str:
    """Return a docstring's part before its sections."""
    text = inspect.getdoc(documented) or ""
    return re.split(r"\n\n(?:Attributes|Args|Raises|Returns):", text)[0].strip()


def attributes(documented: object) -> dict[str, str]:
    """Return the texts of a docstring's `Attributes:` section by name."""
    section = (inspect.getdoc(documented) or "").partition("Attributes:\n")[2]
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if not line.strip():
            break
        if match := _ATTRIBUTE.match(line):
            name = match[1]
            found[name] = match[2]
        elif name:
            found[name] += " " + line.strip()
    return found


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
