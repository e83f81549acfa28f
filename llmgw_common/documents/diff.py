"""What changed between two catalogs, field by field."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llmgw_common.documents.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Change:
    """One field; `before` or `after` is None where it was absent."""

    path: str
    before: str | None
    after: str | None


def diff_catalogs(old: Catalog, new: Catalog) -> list[Change]:
    """Return the changes from `old` to `new`; entries are matched by name, order means nothing."""
    before, after = (_by_name(catalog.model_dump(mode="json")) for catalog in (old, new))
    return list(_diff(before, after, ""))


def _by_name(value: Any) -> Any:  # noqa: ANN401 - plain data
    if isinstance(value, dict):
        return {key: _by_name(inner) for key, inner in value.items()}
    if (
        isinstance(value, list)
        and value
        and all(isinstance(i, dict) and "name" in i for i in value)
    ):
        return {item["name"]: _by_name(item) for item in value}
    return value


def _diff(old: Any, new: Any, path: str) -> Iterator[Change]:  # noqa: ANN401 - plain data
    if old == new:
        return
    old_map, new_map = (v if isinstance(v, dict) else None for v in (old or {}, new or {}))
    if old_map is None or new_map is None:
        yield Change(path, _text(old), _text(new))
        return
    for key in sorted({*old_map, *new_map}):
        inner = f"{path}.{key}" if path else key
        if key not in old_map or key not in new_map:
            is_entry = isinstance(old_map.get(key, new_map.get(key)), dict)
            if is_entry and path in ("engines", "pools", "fabrics", "models"):
                yield Change(
                    inner,
                    "present" if key in old_map else None,
                    "present" if key in new_map else None,
                )
                continue
        yield from _diff(old_map.get(key), new_map.get(key), inner)


def _text(value: Any) -> str | None:  # noqa: ANN401 - plain data
    return None if value is None else str(value)
