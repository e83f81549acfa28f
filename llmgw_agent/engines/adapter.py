"""What each engine kind must tell, and the one place where kinds are registered.

A new kind is one new file and one line in `ADAPTERS` (registry.py).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

ArgValue = str | int | float | bool | list[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFacts:
    """All that a command line may depend on.

    Attributes:
        program: folder or file that the install step gave, None for none.
        weights: local path of the weights, None for none.
        key_file: file (mode 0600) with the key that the engine must ask for.
        args: the engine's arguments overlaid by the profile's.
    """

    program: Path | None
    weights: Path | None
    served_model: str
    host: str
    port: int
    key_file: Path
    gpu_indices: tuple[int, ...]
    args: Mapping[str, ArgValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start the program: an argv list (never a shell) and what its environment adds."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """A line of an engine's log that tells why it ended."""

    pattern: re.Pattern[str]
    kind: str


class EngineAdapter(Protocol):
    """One kind of engine."""

    @property
    def kind(self) -> str:
        """The catalog's word for it."""
        ...

    @property
    def health_path(self) -> str:
        """Path that answers 200 once the engine is up."""
        ...

    @property
    def error_patterns(self) -> tuple[ErrorPattern, ...]:
        """What its log says when it ends, most specific first; exits.py adds the common ones."""
        ...

    def command_line(self, facts: LaunchFacts) -> Launch:
        """Return how to start it; raises LlmgwError if the program is not there."""
        ...


def flags(args: Mapping[str, ArgValue]) -> tuple[str, ...]:
    """Return `--name value` pairs: True is the flag alone, None and False leave it out.

    A list repeats the flag. A value is always its own argv item after its flag, so none is ever
    taken for another flag by us; nothing passes a shell.
    """
    argv: list[str] = []
    for name, value in args.items():
        flag = f"--{name.lstrip('-').replace('_', '-')}"
        if value is True:
            argv.append(flag)
        elif isinstance(value, list):
            for item in value:
                argv += [flag, item]
        elif value is not None and value is not False:
            argv += [flag, str(value)]
    return tuple(argv)
