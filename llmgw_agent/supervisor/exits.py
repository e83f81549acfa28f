"""Why an engine ended: exit code or signal, last log lines, and a class from its words."""

import re
import signal
from pathlib import Path
from typing import Final

from llmgw_agent.engines.adapter import ErrorPattern
from llmgw_common.protocol.facts import ShardError
from llmgw_common.redact import redact

LINES: Final = 50
_TAIL_BYTES: Final = 64 << 10

#: Short names of the patterns to the classes that are reported.
_CLASSES: Final = {
    "oom": "out_of_memory",
    "port_taken": "port_taken",
    "weights": "weights_unreadable",
    "driver": "driver_mismatch",
    "gated": "gated_model",
    "argument": "bad_argument",
}
_COMMON: Final = (
    ErrorPattern(re.compile(r"out of memory|OutOfMemoryError|Cannot allocate memory"), "oom"),
    ErrorPattern(re.compile(r"[Aa]ddress already in use"), "port_taken"),
    ErrorPattern(re.compile(r"driver version is insufficient|no CUDA-capable device"), "driver"),
    ErrorPattern(re.compile(r"gated repo|GatedRepoError"), "gated"),
    ErrorPattern(re.compile(r"unrecognized arguments|error: argument"), "argument"),
)


def tail(log_file: Path, lines: int = LINES) -> tuple[str, ...]:
    """Return the last lines of a log, control characters and secrets taken out."""
    try:
        with log_file.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - _TAIL_BYTES, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    return tuple(clean(line) for line in text.splitlines()[-lines:])


def clean(line: str) -> str:
    """Return a log line fit for terminals and events: printable, at most 500 characters."""
    printable = "".join(c if c.isprintable() or c == "\t" else " " for c in line)
    return redact(printable.rstrip()[:500])


def explain_exit(
    code: int | None, step: str, log_file: Path, patterns: tuple[ErrorPattern, ...]
) -> ShardError:
    """Return the error for a process that ended by itself.

    Args:
        code: as of waitpid (negative: the signal that ended it); None when it was no child of ours.
        step: the step that it was in.
        log_file: the engine's log.
        patterns: the engine's own, tried before the common ones.
    """
    lines = tail(log_file)
    number = -code if code is not None and code < 0 else None
    if code is None:
        text = "the process ended (it was adopted, so its exit code is unknown)"
    elif number is not None:
        text = f"the process was ended by {_signal_name(number)}"
    else:
        text = f"the process ended with exit code {code}"
    kind = _classify(lines, patterns)
    if kind == "unknown" and number == signal.SIGKILL:
        kind = "killed"
    return ShardError(
        step=step,
        kind=kind,
        text=text if kind == "unknown" else f"{text} ({kind.replace('_', ' ')})",
        exit_code=code if number is None else None,
        signal=number,
        log_tail=lines,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _classify(lines: tuple[str, ...], patterns: tuple[ErrorPattern, ...]) -> str:
    for known in (*patterns, *_COMMON):
        if any(known.pattern.search(line) for line in lines):
            return _CLASSES[known.kind]
    return "unknown"
