"""Contexts: named pairs of server and key in a file of the user (mode 0600).

The file is config.yaml in $XDG_CONFIG_HOME/llmgw, or ~/.config/llmgw:

    current: prod
    contexts:
      prod: {server: "https://llmgw.example.org", key: llmgw-...}

Rule: the file holds keys, so it is written by rename, readable by its user only.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_serializer

from llmgw_common.cli.exits import BadInputError
from llmgw_common.documents.sections import Name


class Context(BaseModel):
    """One server and the key for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: str
    key: SecretStr = SecretStr("")

    @field_serializer("key")
    def _whole_key(self, key: SecretStr) -> str:
        return key.get_secret_value()


class Contexts(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    current: str = ""
    contexts: dict[Name, Context] = Field(default_factory=dict)

    def named(self, name: str) -> Context:
        """Return the context of that name.

        Raises:
            BadInputError: there is none.
        """
        found = self.contexts.get(name)
        if found is None:
            known = ", ".join(sorted(self.contexts)) or "none; make one with llmgw context set"
            raise BadInputError(f"there is no context {name!r}; known: {known}")
        return found

    def with_context(self, name: str, context: Context) -> "Contexts":
        """Return these with one more (or another one of that name), made the current one."""
        return _checked({"current": name, "contexts": {**self.contexts, name: context}})

    def using(self, name: str) -> "Contexts":
        """Return these with another current one."""
        self.named(name)
        return self.model_copy(update={"current": name})


def contexts_file(environment: Mapping[str, str]) -> Path:
    """Return where the contexts are."""
    base = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "llmgw" / "config.yaml"


def read_contexts(file: Path) -> Contexts:
    """Return what the file holds; nothing if there is none.

    Raises:
        BadInputError: it cannot be read or understood.
    """
    try:
        return _checked(yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    except FileNotFoundError:
        return Contexts()
    except (OSError, yaml.YAMLError, UnicodeDecodeError, BadInputError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a file of contexts"
        raise BadInputError(f"{file} cannot be read: {why}") from error


def write_contexts(file: Path, contexts: Contexts) -> None:
    """Replace the file, whole or not at all.

    Raises:
        BadInputError: it cannot be written.
    """
    text = yaml.safe_dump(contexts.model_dump(mode="json"), sort_keys=False)
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        staging = file.with_name(file.name + ".new")
        staging.unlink(missing_ok=True)
        with os.fdopen(os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text)
        staging.replace(file)
    except OSError as error:
        raise BadInputError(f"{file} cannot be written: {error.strerror}") from error


def _checked(content: object) -> Contexts:
    try:
        return Contexts.model_validate(content)
    except ValidationError as error:
        places = sorted({".".join(map(str, e["loc"])) for e in error.errors(include_input=False)})
        raise BadInputError(f"contexts have errors at {', '.join(places)}") from error
