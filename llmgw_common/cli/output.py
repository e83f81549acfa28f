"""Printing: tables for people, JSON and YAML for programs.

Rule 1: standard output holds the answer and nothing else; hints and errors go to standard error.
Rule 2: what came from a server is never read as markup and holds no control characters (text.py);
JSON and YAML keep them, escaped.
Rule 3: off a terminal nothing is cut or wrapped.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

import yaml
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmgw_common.cli.text import one_line, plain

Item = TypeVar("Item")

#: Columns off a terminal: wide enough that nothing wraps.
_WIDE: Final = 2000

_STYLES: Final = {
    "ready": "green",
    "connected": "green",
    "on demand": "cyan",
    "starting": "yellow",
    "placing": "yellow",
    "scaling": "yellow",
    "waiting": "yellow",
    "degraded": "yellow",
    "draining": "yellow",
    "suspect": "yellow",
    "failed": "red",
    "lost": "red",
}


class Format(StrEnum):
    """How answers are printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    """One column of a table: its head, and what stands in it."""

    head: str
    cell: Callable[[Item], object]
    is_number: bool = False


def out() -> Console:
    """Return the console of standard output."""
    return _console(is_error=False)


def err() -> Console:
    """Return the console of standard error."""
    return _console(is_error=True)


def _console(*, is_error: bool) -> Console:
    stream = sys.stderr if is_error else sys.stdout
    width = None if stream.isatty() else _WIDE
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def say(text: str) -> None:
    """Print lines that may hold foreign text."""
    out().print(Text(plain(text)), soft_wrap=True)


def hint(text: str) -> None:
    """Print a line for people, beside the answer."""
    err().print(Text(plain(text)), soft_wrap=True)


def styled(word: str) -> Text:
    """Return a state word in its colour."""
    shown = one_line(word)
    return Text(shown, style=_STYLES.get(shown, ""))


def table(items: Sequence[Item], columns: Sequence[Column[Item]], empty: str) -> None:
    """Print one row an item, or on standard error that there are none."""
    if not items:
        hint(empty)
        return
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        shown.add_column(
            column.head,
            justify="right" if column.is_number else "left",
            no_wrap=column is not columns[-1],
            overflow="ellipsis" if column is not columns[-1] else "fold",
        )
    for item in items:
        shown.add_row(*(_cell(column.cell(item)) for column in columns))
    out().print(shown)


def document(content: BaseModel | Sequence[BaseModel], output: Format) -> None:
    """Print one view, or a list of views, for programs."""
    plain_data = (
        content.model_dump(mode="json")
        if isinstance(content, BaseModel)
        else [item.model_dump(mode="json") for item in content]
    )
    if output is Format.JSON:
        text = json.dumps(plain_data, indent=2)
    else:
        text = yaml.safe_dump(plain_data, sort_keys=False, allow_unicode=True, width=100).rstrip()
    print(text)


def line_document(content: BaseModel, output: Format) -> None:
    """Print one view of an endless list: a line of JSON, or a YAML document."""
    if output is Format.JSON:
        print(json.dumps(content.model_dump(mode="json")), flush=True)
    else:
        print("---\n" + yaml.safe_dump(content.model_dump(mode="json"), sort_keys=False), end="")
        sys.stdout.flush()


def facts(rows: Sequence[tuple[str, object]]) -> None:
    """Print `name: value` lines; empty values are left out."""
    kept = [(name, value) for name, value in rows if value not in ("", None, ())]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        line = Text(f"{name + ':':<{width + 2}}", style="bold")
        line.append_text(_cell(value))
        out().print(line, soft_wrap=True)


def heading(text: str) -> None:
    """Print the head of a part."""
    out().print()
    out().print(Text(one_line(text), style="bold underline"))


def _cell(value: object) -> Text:
    if isinstance(value, Text):
        return value
    if value is None or value == "":
        return Text("-", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, tuple | list):
        return Text(one_line(", ".join(map(str, value))) or "-")
    return Text(one_line(str(value)))
