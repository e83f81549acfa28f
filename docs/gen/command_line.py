"""cli.md: every command of `llmgw`, and the options of the two programs."""

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import typer

from docs.gen.markdown import code, table
from llmgw_common.cli.main import app


class Parameter(Protocol):
    """An option or argument, as the command line library has it."""

    name: str
    param_type_name: str
    opts: Sequence[str]
    secondary_opts: Sequence[str]
    required: bool
    default: object
    help: str | None


class Command(Protocol):
    """A command, or a group of them."""

    help: str | None
    params: Sequence[Parameter]


def page() -> str:
    """Return the page."""
    root = cast(Command, typer.main.get_command(app))
    parts = [
        "# Command line",
        "",
        "`llmgw` is a client of the admin API and nothing else: whatever it does, a program can "
        "do through [the API](api.md).",
        "",
        _paragraph(root.help),
        "",
        _options(root),
    ]
    for path, command in sorted(_commands(root, "llmgw"), key=lambda found: found[0]):
        parts += [f"## {path}", "", code(_usage(path, command)), "", _paragraph(command.help), ""]
        parts.append(_options(command))
    return "\n".join(parts)


def _commands(command: Command, path: str) -> list[tuple[str, Command]]:
    inner: Mapping[str, Command] | None = getattr(command, "commands", None)
    if inner is None:
        return [(path, command)]
    return [found for name, one in inner.items() for found in _commands(one, f"{path} {name}")]


def _usage(path: str, command: Command) -> str:
    words = [path]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = parameter.name.upper().replace("_", "-")
            words.append(name if parameter.required else f"[{name}]")
    return " ".join((*words, "[OPTIONS]"))


def _options(command: Command) -> str:
    rows = [
        (_names(parameter), _default(parameter), parameter.help or "")
        for parameter in command.params
        if parameter.name not in ("help", "install_completion", "show_completion")
    ]
    return table(("option", "default", "meaning"), rows) if rows else ""


def _names(parameter: Parameter) -> str:
    if parameter.param_type_name == "argument":
        return code(parameter.name.upper().replace("_", "-"))
    return ", ".join(code(name) for name in (*parameter.opts, *parameter.secondary_opts))


def _default(parameter: Parameter) -> str:
    if parameter.required:
        return "(needed)"
    value = getattr(parameter.default, "value", parameter.default)
    return code(str(value)) if value not in (None, False, "") and not callable(value) else ""


def _paragraph(text: str | None) -> str:
    return " ".join((text or "").split())
