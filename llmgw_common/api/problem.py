"""Errors of the admin API: RFC 9457 problem documents."""

from pydantic import BaseModel, ConfigDict


class ProblemError(BaseModel):
    """One mistake of several, with its place."""

    model_config = ConfigDict(frozen=True)

    path: str = ""
    line: int = 0
    message: str
    hint: str = ""
    file: str = ""


class Problem(BaseModel):
    """What went wrong (RFC 9457, with `code`, `errors` and `trace_id` as extensions)."""

    model_config = ConfigDict(frozen=True)

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    code: str = ""
    errors: tuple[ProblemError, ...] = ()
    trace_id: str = ""
