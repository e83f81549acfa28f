"""Printing: tables for people, JSON or YAML for programs.

Rule: what came from a server is never taken for markup and holds no control characters (text.py).
"""

import json
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import yaml
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llmgw_common.cli.text import age
from llmgw_common.cli.text import plain as plain_text
from llmgw_common.clock import SystemClock

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

_COLOURS: Final = {
    "ready": "green",
    "connected": "green",
    "on demand": "cyan",
    "starting": "yellow",
    "scaling": "yellow",
    "placing": "yellow",
    "draining": "yellow",
    "waiting": "yellow",
    "suspect": "yellow",
    "degraded": "red",
    "failed": "red",
    "lost": "red",
}


class Format(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def plain(text: object) -> str:
    """Return text that cannot drive the terminal."""
    return plain_text(str(text))


def cell(text: object) -> str:
    """Return any text as a cell: nothing in it is taken for markup."""
    return escape(plain(text))


def state(word: str) -> str:
    """Return a state with its colour."""
    colour = _COLOURS.get(word)
    return f"[{colour}]{escape(word)}[/]" if colour else cell(word)


def ago(at: datetime | None) -> str:
    """Return how long ago, in about two digits; "-" for never."""
    return age(at, SystemClock().now())


def show(value: BaseModel | Sequence[BaseModel], output: Format) -> None:
    """Print one or many models for programs."""
    found: Any
    if isinstance(value, BaseModel):
        found = value.model_dump(mode="json")
    else:
        found = [item.model_dump(mode="json") for item in value]
    if output is Format.YAML:
        print(yaml.safe_dump(found, sort_keys=False, allow_unicode=True), end="")
    else:
        print(json.dumps(found, indent=2, ensure_ascii=False))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> None:
    """Print a table; `nothing` is said instead of an empty one. Cells may hold rich markup."""
    if not rows:
        console.print(nothing, markup=False)
        return
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column.upper(), overflow="fold")
    for row in rows:
        grid.add_row(*row)
    console.print(grid)
