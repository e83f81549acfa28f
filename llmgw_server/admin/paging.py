"""Cursor paging over lists that are sorted by a stable key."""

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query

from llmgw_common.api.models import Page

Value = TypeVar("Value")
Shown = TypeVar("Shown")

Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str, Query(max_length=300)]


def page_of(
    values: Sequence[Value],
    key: Callable[[Value], str],
    show: Callable[[Value], Shown],
    cursor: str,
    limit: int,
) -> Page[Shown]:
    """Return the values after `cursor` (the key of the last one shown), at most `limit`.

    The key makes the cursor hold while others are added and removed.
    """
    ordered = sorted(values, key=key)
    rest = [value for value in ordered if key(value) > cursor] if cursor else ordered
    part = rest[:limit]
    return Page(
        items=tuple(show(value) for value in part),
        next=key(part[-1]) if len(rest) > limit else "",
    )
