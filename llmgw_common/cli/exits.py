"""Exit codes, and how an error becomes one line for people and one code for programs.

0 it worked - 1 an error - 2 bad input - 3 the server cannot be reached - 4 the key is not accepted,
or may not do this - 5 there is no such thing. These numbers stay: scripts depend on them.
"""

import json
from typing import Final

import httpx
from pydantic import ValidationError

from llmgw_common.api.client import ApiError
from llmgw_common.api.problem import Problem, ProblemError
from llmgw_common.cli.text import one_line
from llmgw_common.document_errors import InvalidDocumentError
from llmgw_common.errors import LlmgwError

OK: Final = 0
ERROR: Final = 1
BAD_INPUT: Final = 2
NOT_REACHABLE: Final = 3
UNAUTHORIZED: Final = 4
NOT_FOUND: Final = 5

#: For --help.
EXIT_CODES_TEXT: Final = (
    "Exit codes: 0 it worked, 1 an error, 2 bad input, 3 the server cannot be reached, "
    "4 the key is not accepted or may not do this, 5 there is no such thing."
)

_BY_STATUS: Final = {
    400: BAD_INPUT,
    401: UNAUTHORIZED,
    403: UNAUTHORIZED,
    404: NOT_FOUND,
    413: BAD_INPUT,
    422: BAD_INPUT,
}

#: What main() turns into a line and a code; anything else is a fault of ours and shows itself.
EXPECTED_ERRORS: Final = (
    ApiError,
    httpx.TransportError,
    httpx.InvalidURL,
    InvalidDocumentError,
    LlmgwError,
    ValidationError,
    json.JSONDecodeError,
)


class BadInputError(LlmgwError):
    """What the caller gave cannot be used; ends with code 2."""

    def __init__(self, message: str) -> None:
        super().__init__("bad_request", message)


def code_of(error: Exception) -> int:
    """Return the exit code of an expected error."""
    match error:
        case ApiError(problem=problem):
            return _BY_STATUS.get(problem.status, ERROR)
        case httpx.InvalidURL() | InvalidDocumentError() | httpx.UnsupportedProtocol():
            return BAD_INPUT
        case httpx.TransportError():
            return NOT_REACHABLE
        case LlmgwError(kind=kind):
            return _BY_STATUS.get(kind.status, ERROR)
        case _:
            return ERROR


def lines_of(error: Exception, server: str) -> list[str]:
    """Return what to print of an expected error; never a value that may be secret."""
    match error:
        case ApiError(problem=problem):
            return _problem_lines(problem)
        case InvalidDocumentError(errors=errors):
            return [one_line(str(mistake)) for mistake in errors]
        case httpx.InvalidURL() | httpx.UnsupportedProtocol():
            return [f"{server} is no address: write it like http://127.0.0.1:8000"]
        case httpx.TimeoutException():
            return [f"{server} does not answer in time"]
        case httpx.TransportError():
            return [
                f"{server} cannot be reached: {one_line(str(error)) or type(error).__name__}",
                "is the server running? choose another with --server, LLMGW_SERVER or a context",
            ]
        case ValidationError() | json.JSONDecodeError():
            return [f"{server} does not answer as an llmgw server of this version"]
        case _:
            return [one_line(line) for line in str(error).splitlines()]


def _problem_lines(problem: Problem) -> list[str]:
    head = ": ".join(part for part in (problem.title, problem.detail) if part)
    lines = [one_line(head), *(_mistake_line(mistake) for mistake in problem.errors)]
    if problem.trace_id:
        lines.append(f"trace {one_line(problem.trace_id)}")
    return lines


def _mistake_line(mistake: ProblemError) -> str:
    place = f"{mistake.file}:{mistake.line}" if mistake.line else mistake.file
    text = " ".join(part for part in (place, mistake.path, mistake.message) if part)
    return one_line(f"  {text} ({mistake.hint})" if mistake.hint else f"  {text}")
