"""Configuration of the two programs: defaults < file < environment < flags.

Each value knows its origin.

Rule 1: an unknown key, in the file or in the environment, is an error with its place and the
nearest known key. All errors are told at once.
Rule 2: environment variables are `PREFIX__KEY` and `PREFIX__BLOCK__KEY`, like
LLMGW_SERVER__GATEWAY__AUTH; lists and maps are written as YAML.
Rule 3: secrets are shown as ***.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, SecretStr, ValidationError

from llmgw_common.document_errors import (
    DocumentError,
    InvalidDocumentError,
    from_validation,
    nearest,
)
from llmgw_common.redact import MASK
from llmgw_common.yaml_lines import LinedDocument, YamlError, path_text, read_yaml

Settings = TypeVar("Settings", bound=BaseModel)

KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Settings]):
    """Settings and where each value came from (by dotted path)."""

    settings: Settings
    origins: Mapping[str, str]


def load_settings(
    model: type[Settings],
    *,
    file: Path | None = None,
    environment: Mapping[str, str],
    prefix: str,
    flags: Mapping[str, Any] | None = None,
) -> Loaded[Settings]:
    """Return the settings in force.

    Args:
        model: the pydantic model of the whole file.
        file: a YAML file, or None for none.
        environment: usually os.environ.
        prefix: of the variables, like LLMGW_SERVER.
        flags: values from the command line by dotted path; None means not given.

    Raises:
        InvalidDocumentError: every mistake, each with its place.
    """
    document = _read(file)
    values: dict[str, Any] = document.data or {}
    file_name = str(file) if file else ""
    origins = {
        path_text(path): f"{file_name}:{line}" for path, line in document.lines.items() if path
    }
    errors: list[DocumentError] = []
    for name, text in sorted(environment.items()):
        if not name.startswith(prefix + "__"):
            continue
        path = tuple(name.removeprefix(prefix + "__").lower().split("__"))
        if not _is_known(model, path):
            hint = nearest(path[-1], _known_keys(model, path[:-1]))
            errors.append(DocumentError(path=name, line=0, message="unknown variable", hint=hint))
            continue
        _set(values, path, _from_text(text))
        origins[".".join(path)] = name
    for dotted, value in (flags or {}).items():
        if value is not None:
            _set(values, tuple(dotted.split(".")), value)
            origins[dotted] = "--" + dotted.replace("_", "-").replace(".", "-")
    try:
        settings = model.model_validate(values)
    except ValidationError as error:
        document.data = values
        found = from_validation(error, document, model, file_name)
        errors.extend(_with_origin(mistake, origins) for mistake in found)
        raise InvalidDocumentError(errors) from error
    if errors:
        raise InvalidDocumentError(errors)
    return Loaded(settings, origins)


def render_with_origins(loaded: Loaded[Settings]) -> str:
    """Return one line a value, `key: value  # origin`, secrets masked."""
    rows = list(_rows(loaded.settings, ""))
    width = max(len(f"{path}: {value}") for path, value in rows)
    return "\n".join(
        f"{f'{path}: {value}':<{width}}  # {_origin(path, loaded.origins)}" for path, value in rows
    )


def _origin(path: str, origins: Mapping[str, str]) -> str:
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        found = origins.get(".".join(parts[:length]))
        if found and (length == len(parts) or not found.startswith("/")):
            return found
    return "default"


def _read(file: Path | None) -> LinedDocument:
    if file is None:
        return LinedDocument({})
    try:
        documents = read_yaml(file.read_text(encoding="utf-8"))
    except OSError as error:
        text = f"cannot be read: {error.strerror}"
        raise InvalidDocumentError(
            [DocumentError(path="", line=0, message=text, file=str(file))]
        ) from error
    except YamlError as error:
        mistake = DocumentError(path="", line=error.line, message=str(error), file=str(file))
        raise InvalidDocumentError([mistake]) from error
    document = documents[0] if documents else LinedDocument({})
    if len(documents) > 1 or not isinstance(document.data or {}, dict):
        text = "must be one mapping of settings"
        raise InvalidDocumentError([DocumentError(path="", line=1, message=text, file=str(file))])
    return document


def _with_origin(error: DocumentError, origins: Mapping[str, str]) -> DocumentError:
    origin = origins.get(error.path, "")
    if not origin or origin.startswith(error.file + ":"):
        return error
    return DocumentError(
        path=error.path, line=0, message=error.message, hint=error.hint, file=origin
    )


def _block(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    field = model.model_fields.get(name)
    annotation = field.annotation if field else None
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def _is_known(model: type[BaseModel], path: KeyPath) -> bool:
    block: type[BaseModel] | None = model
    for i, part in enumerate(path):
        if block is None or part not in block.model_fields:
            return False
        inner = _block(block, part)
        if inner is None and i < len(path) - 1:
            return "dict" in str(block.model_fields[part].annotation) and i == len(path) - 2
        block = inner
    return True


def _known_keys(model: type[BaseModel], path: KeyPath) -> list[str]:
    block: type[BaseModel] | None = model
    for part in path:
        block = _block(block, part) if block else None
    return list(block.model_fields) if block else []


def _set(values: dict[str, Any], path: KeyPath, value: Any) -> None:  # noqa: ANN401 - plain data
    for part in path[:-1]:
        inner = values.get(part)
        values[part] = inner if isinstance(inner, dict) else {}
        values = values[part]
    values[path[-1]] = value


def _from_text(text: str) -> Any:  # noqa: ANN401 - plain data
    if text[:1] in "[{":
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError:
            return text
    return text


def _rows(block: BaseModel, prefix: str) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name in type(block).model_fields:
        value = getattr(block, name)
        if isinstance(value, BaseModel):
            rows.extend(_rows(value, f"{prefix}{name}."))
        elif isinstance(value, SecretStr):
            rows.append((prefix + name, MASK if value.get_secret_value() else '""'))
        else:
            rows.append((prefix + name, "null" if value is None else str(value)))
    return rows
