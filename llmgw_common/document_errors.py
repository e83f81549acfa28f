"""Errors of documents (catalog, server.yaml, agent.yaml): all at once, each with its place.

Used by documents/ and config.py, so that both speak alike: file, line, path, what is wrong, and the
nearest known key where one was misspelt.
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from llmgw_common.yaml_lines import LinedDocument, Path, path_text


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentError:
    """One mistake.

    Attributes:
        path: where in the document, like models[1].scaling.min.
        line: line in the file, 1 is the first; 0 if it has none.
        hint: what to write instead, if that is known.
    """

    path: str
    line: int
    message: str
    hint: str = ""
    file: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        text = ": ".join(part for part in (place, self.path, self.message) if part)
        return f"{text} ({self.hint})" if self.hint else text


class InvalidDocumentError(Exception):
    """All the mistakes of a document, in the order of their lines."""

    def __init__(self, errors: list[DocumentError]) -> None:
        self.errors = sorted(errors, key=lambda e: (e.file, e.line, e.path))
        super().__init__("\n".join(str(error) for error in self.errors))


def from_validation(
    error: ValidationError, document: LinedDocument, model: type[BaseModel], file: str
) -> list[DocumentError]:
    """Turn pydantic's errors into ours; values are never repeated, they may be secrets."""
    found: dict[str, DocumentError] = {}
    for detail in error.errors(include_url=False, include_context=True):
        path = _real_path(detail["loc"], document.data)
        text = path_text(path)
        kind = detail["type"]
        message, hint = detail["msg"], ""
        if kind == "extra_forbidden":
            message = f"unknown key {str(path[-1])!r}"
            hint = nearest(str(path[-1]), _keys_at(model, path[:-1], document.data))
        elif kind == "missing":
            message = f"{str(detail['loc'][-1])!r} is missing"
        elif kind == "value_error":
            message = str(detail.get("ctx", {}).get("error", message))
        else:
            message = message[0].lower() + message[1:]
        found.setdefault(
            text + kind if kind == "missing" else text,
            DocumentError(
                path=text, line=document.line_of(path), message=message, hint=hint, file=file
            ),
        )
    return list(found.values())


def nearest(word: str, known: list[str]) -> str:
    """Return a hint with the nearest known key, or the list of those there are."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known here: {', '.join(sorted(known))}" if known else ""


def _real_path(loc: tuple[str | int, ...], data: Any) -> Path:  # noqa: ANN401 - plain data
    """Drop what pydantic adds to a location (union members), keep what stands in the document."""
    path: list[str | int] = []
    for part in loc:
        if isinstance(data, dict) and isinstance(part, str):
            if part in data:
                path.append(part)
                data = data[part]
            elif part == loc[-1]:
                path.append(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            path.append(part)
            data = data[part]
    return tuple(path)


def _keys_at(model: type[BaseModel], path: Path, data: Any) -> list[str]:  # noqa: ANN401
    """Return the keys that the model knows at `path`."""
    models: list[type[BaseModel]] = [model]
    for part in path:
        if isinstance(part, int):
            continue
        models = [
            inner
            for outer in models
            if part in outer.model_fields
            for inner in _models_in(outer.model_fields[part].annotation)
        ]
    return sorted({key for m in models for key in m.model_fields})


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401 - any annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
