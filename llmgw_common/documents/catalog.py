"""The catalog: read whole, checked whole, all errors at once.

Three looks, and the errors of all of them are told together: the text as YAML, each document's
shape, and what only the whole can tell (references, duplicate names, aliases).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml
from pydantic import BaseModel, Field, PrivateAttr, ValidationError

from llmgw_common.document_errors import (
    DocumentError,
    InvalidDocumentError,
    from_validation,
    nearest,
)
from llmgw_common.documents.engines import Engine
from llmgw_common.documents.models import Model
from llmgw_common.documents.pools import Fabric, Pool
from llmgw_common.documents.sections import Section
from llmgw_common.yaml_lines import LinedDocument, Path, YamlError, path_text, read_yaml

_SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "engines": Engine,
    "pools": Pool,
    "fabrics": Fabric,
    "models": Model,
}


class Catalog(Section):
    """What is wanted, whole and consistent."""

    engines: list[Engine] = Field(default_factory=list)
    pools: list[Pool] = Field(default_factory=list)
    fabrics: list[Fabric] = Field(default_factory=list)
    models: list[Model] = Field(default_factory=list)

    _models: dict[str, Model] = PrivateAttr(default_factory=dict)
    _engines: dict[str, Engine] = PrivateAttr(default_factory=dict)
    _pools: dict[str, Pool] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:  # noqa: ANN401 - pydantic's signature
        """Index by name; an alias leads to its model."""
        self._engines = {engine.name: engine for engine in self.engines}
        self._pools = {pool.name: pool for pool in self.pools}
        for model in self.models:
            self._models.update(dict.fromkeys(model.aliases, model))
        self._models.update({model.name: model for model in self.models})

    def model(self, name: str) -> Model | None:
        """Return the model of that name or alias."""
        return self._models.get(name)

    def engine(self, name: str) -> Engine | None:
        """Return the engine of that name."""
        return self._engines.get(name)

    def pool_has(self, pool: str, node_name: str, labels: Mapping[str, str]) -> bool:
        """Say whether the pool exists and holds a node of that name and those labels."""
        found = self._pools.get(pool)
        return found is not None and found.nodes.matches(node_name, labels)


def load_catalog(text: str, file: str = "") -> Catalog:
    """Return the catalog that `text` (YAML or JSON, one or more documents) describes.

    Raises:
        InvalidDocumentError: every mistake in it, each with file, line and path.
    """
    try:
        documents = read_yaml(text)
    except YamlError as error:
        mistake = DocumentError(path="", line=error.line, message=str(error), file=file)
        raise InvalidDocumentError([mistake]) from error
    merged, errors = _merge(documents, file)
    sections: dict[str, list[Any]] = {name: [] for name in _SECTIONS}
    for name, kind in _SECTIONS.items():
        for item in merged[name]:
            try:
                sections[name].append(kind.model_validate(item.data))
            except ValidationError as error:
                found = from_validation(error, item, kind, file)
                errors.extend(_under(item, found))
    errors.extend(_cross_check(merged, file))
    if errors:
        raise InvalidDocumentError(errors)
    return Catalog(**sections)


def dump_catalog(catalog: Catalog) -> str:
    """Return the catalog as YAML that loads to the same catalog, without defaults."""
    plain = catalog.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)


class _Item(LinedDocument):
    """One entry of a section, with its own place in its document."""

    __slots__ = ("at",)

    def __init__(self, data: Any, lines: dict[Path, int], at: Path) -> None:  # noqa: ANN401
        super().__init__(data, lines)
        self.at = at


def _merge(
    documents: list[LinedDocument], file: str
) -> tuple[dict[str, list[_Item]], list[DocumentError]]:
    """Gather the sections of all documents; report what is no section."""
    merged: dict[str, list[_Item]] = {name: [] for name in _SECTIONS}
    errors = []
    for document in documents:
        if document.data is None:
            continue
        if not isinstance(document.data, dict):
            text = f"a catalog is a mapping of {', '.join(_SECTIONS)}"
            errors.append(
                DocumentError(path="", line=document.line_of(()), message=text, file=file)
            )
            continue
        for key, value in document.data.items():
            line = document.line_of((key,))
            if key not in _SECTIONS:
                hint = nearest(key, list(_SECTIONS))
                message = f"unknown key {key!r}"
                errors.append(
                    DocumentError(path=key, line=line, message=message, hint=hint, file=file)
                )
            elif isinstance(value, list):
                merged[key].extend(
                    _Item(item, _lines_under(document, (key, i)), (key, i))
                    for i, item in enumerate(value)
                )
            elif value is not None:
                errors.append(
                    DocumentError(path=key, line=line, message="must be a list", file=file)
                )
    return merged, errors


def _lines_under(document: LinedDocument, at: Path) -> dict[Path, int]:
    size = len(at)
    return {path[size:]: line for path, line in document.lines.items() if path[:size] == at}


def _under(item: _Item, errors: list[DocumentError]) -> Iterable[DocumentError]:
    """Put the entry's own place before the paths of its errors."""
    prefix = path_text(item.at)
    for error in errors:
        path = f"{prefix}.{error.path}" if error.path else prefix
        yield DocumentError(
            path=path, line=error.line, message=error.message, hint=error.hint, file=error.file
        )


def _cross_check(merged: dict[str, list[_Item]], file: str) -> Iterable[DocumentError]:
    """What only the whole can tell; works on the plain data, so one bad entry hides no other."""
    known: dict[str, list[str]] = {}
    for section, items in merged.items():
        taken: dict[str, int] = {}
        for item in items:
            for name, path in _names(section, item):
                line = item.line_of(path)
                if name in taken:
                    what = "model or alias" if section == "models" else section[:-1]
                    yield DocumentError(
                        path=path_text((*item.at, *path)),
                        line=line,
                        message=f"duplicate {what} {name!r}, first on line {taken[name]}",
                        file=file,
                    )
                else:
                    taken[name] = line
        known[section] = list(taken)
    for item in merged["models"]:
        yield from _references(item, known, file)


def _names(section: str, item: _Item) -> Iterable[tuple[str, Path]]:
    if not isinstance(item.data, dict):
        return
    if isinstance(item.data.get("name"), str):
        yield item.data["name"], ("name",)
    aliases = item.data.get("aliases")
    if section == "models" and isinstance(aliases, list):
        for i, alias in enumerate(aliases):
            if isinstance(alias, str):
                yield alias, ("aliases", i)


def _references(item: _Item, known: dict[str, list[str]], file: str) -> Iterable[DocumentError]:
    data = item.data if isinstance(item.data, dict) else {}
    wanted: list[tuple[Path, str, Any]] = []
    fallbacks = data.get("fallbacks")
    for i, name in enumerate(fallbacks if isinstance(fallbacks, list) else ()):
        wanted.append((("fallbacks", i), "models", name))
    profiles = data.get("profiles")
    seen: set[str] = set()
    for i, profile in enumerate(profiles if isinstance(profiles, list) else ()):
        if not isinstance(profile, dict):
            continue
        for key, section in (("engine", "engines"), ("pool", "pools"), ("fabric", "fabrics")):
            if isinstance(profile.get(key), str) and (key, profile[key]) != ("fabric", "any"):
                wanted.append((("profiles", i, key), section, profile[key]))
        name = profile.get("name")
        if isinstance(name, str) and name in seen:
            yield _at(item, ("profiles", i, "name"), f"duplicate profile {name!r}", "", file)
        seen.add(str(name))
    for path, section, name in wanted:
        if isinstance(name, str) and name not in known[section]:
            hint = nearest(name, known[section])
            yield _at(item, path, f"unknown {section[:-1]} {name!r}", hint, file)


def _at(item: _Item, path: Path, message: str, hint: str, file: str) -> DocumentError:
    return DocumentError(
        path=path_text((*item.at, *path)),
        line=item.line_of(path),
        message=message,
        hint=hint,
        file=file,
    )
