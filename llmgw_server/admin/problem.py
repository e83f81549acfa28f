"""Errors to problem documents (RFC 9457); a fault of ours tells its kind, never its insides."""

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from llmgw_common.api.problem import Problem, ProblemError
from llmgw_common.document_errors import InvalidDocumentError
from llmgw_common.errors import ERROR_KINDS, LlmgwError

log = structlog.get_logger(__name__)

_CODES = {404: "not_found", 405: "bad_request", 413: "too_large"}


def install(app: FastAPI) -> None:
    """Make every error of the app a problem document."""
    app.add_exception_handler(LlmgwError, _llmgw_error)
    app.add_exception_handler(InvalidDocumentError, _invalid_document)
    app.add_exception_handler(RequestValidationError, _bad_body)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(Exception, _fault)


def answer(problem: Problem) -> Response:
    """Return the response of a problem."""
    headers = {"www-authenticate": "Bearer"} if problem.status == 401 else {}
    if problem.status == 503:
        headers["retry-after"] = "5"
    return JSONResponse(
        problem.model_dump(mode="json"),
        status_code=problem.status,
        media_type="application/problem+json",
        headers=headers,
    )


def problem_of(code: str, detail: str, errors: tuple[ProblemError, ...] = ()) -> Problem:
    """Return the problem of an error code."""
    kind = ERROR_KINDS[code]
    return Problem(
        type=f"https://llmgw.dev/errors/{code}",
        title=kind.title,
        status=kind.status,
        detail=detail,
        code=code,
        errors=errors,
    )


async def _llmgw_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LlmgwError)  # noqa: S101 - what the handler is registered for
    return answer(problem_of(error.code, error.message))


async def _invalid_document(request: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidDocumentError)  # noqa: S101 - see above
    errors = tuple(
        ProblemError(path=e.path, line=e.line, message=e.message, hint=e.hint, file=e.file)
        for e in error.errors
    )
    count = len(errors)
    detail = f"{count} error{'s' if count > 1 else ''}; nothing was applied"
    return answer(problem_of("invalid_catalog", detail, errors))


async def _bad_body(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - see above
    errors = tuple(
        ProblemError(path=".".join(str(part) for part in e["loc"]), message=e["msg"])
        for e in error.errors()
    )
    return answer(problem_of("unprocessable", "the request has errors", errors))


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - see above
    code = _CODES.get(error.status_code, "bad_request")
    problem = problem_of(code, f"{request.method} {request.scope['path'][:200]}: {error.detail}")
    response = answer(problem.model_copy(update={"status": error.status_code}))
    response.headers.update(error.headers or {})
    return response


async def _fault(request: Request, error: Exception) -> Response:
    log.error("a request failed by a fault of ours", path=request.scope["path"], exc_info=error)
    return answer(problem_of("internal", "see the server's log"))
