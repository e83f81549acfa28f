"""Which server, and with which key: flags > environment > the context in use > loopback.

Contexts are kept in ~/.config/llmgw/config.yaml (or $XDG_CONFIG_HOME), readable by its user only.

Rule: a context's key goes to that context's server only, never to one named by a flag or variable.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_serializer

DEFAULT_SERVER: Final = "http://127.0.0.1:8000"


class Context(BaseModel):
    """A server and the key to use with it."""

    model_config = ConfigDict(extra="forbid")

    server: str = DEFAULT_SERVER
    key: SecretStr = SecretStr("")

    @field_serializer("key")
    def _reveal_in_the_file(self, value: SecretStr) -> str:
        return value.get_secret_value()


class Contexts(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid")

    current: str = ""
    contexts: dict[str, Context] = Field(default_factory=dict)


class ContextFileError(Exception):
    """The file cannot be read."""


def file_path(environment: Mapping[str, str]) -> Path:
    """Return where contexts are kept."""
    folder = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "llmgw" / "config.yaml"


def read(path: Path) -> Contexts:
    """Return the contexts; none if there is no file.

    Raises:
        ContextFileError: the file is not what this program writes.
    """
    try:
        return Contexts.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except FileNotFoundError:
        return Contexts()
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise ContextFileError(f"{path} cannot be read; mend or delete it") from error


def write(path: Path, contexts: Contexts) -> None:
    """Keep the contexts."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    staged = path.with_suffix(".new")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        yaml.safe_dump(contexts.model_dump(), file, sort_keys=False)
    staged.rename(path)


def choose(
    server: str | None, key: str | None, environment: Mapping[str, str], contexts: Contexts
) -> Context:
    """Return the server and key in force; see the module's rule."""
    kept = contexts.contexts.get(contexts.current, Context())
    address = server or environment.get("LLMGW_SERVER") or kept.server
    kept_key = kept.key.get_secret_value() if address == kept.server else ""
    text = key or environment.get("LLMGW_KEY") or kept_key
    return Context(server=address, key=SecretStr(text))
