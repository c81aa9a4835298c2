"""Errors of a request as JSON: where, what was got, what was expected."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from think_as_locals.types import DataError

_MAX_ERRORS = 10
_SHORT = reprlib.Repr()  # bounds depth and length, whatever a client sends
_SHORT.maxstring = _SHORT.maxother = 60


class ErrorDetail(BaseModel):
    """One thing that is wrong."""

    place: str
    got: str
    expected: str


class ErrorAnswer(BaseModel):
    """The body of every answer that is not 200."""

    errors: list[ErrorDetail]


class RequestError(HTTPException):
    """A request that is refused: HTTP status, `place` (`body`, `items[0].prompt`), got, expected, headers to send."""

    def __init__(
        self, status: int, place: str, got: str, expected: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, detail=expected, headers=headers)
        self.error = ErrorDetail(place=place, got=got, expected=expected)

    def response(self) -> JSONResponse:
        """Return it as an answer."""
        return _response(self.status_code, [self.error], self.headers)


def short_repr(value: object) -> str:
    """Return a value that a client sent, short and encodable."""
    return _encodable(_SHORT.repr(value))


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error of an app in the same form."""

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        if not isinstance(error, RequestError):  # an unknown route or method
            got = short_repr(f"{request.method} {request.url.path}")
            error = RequestError(error.status_code, "request", got, str(error.detail), error.headers)
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def invalid_body(request: Request, error: RequestValidationError) -> JSONResponse:
        return _response(422, [_invalid(**each) for each in error.errors()[:_MAX_ERRORS]])

    @app.exception_handler(DataError)
    async def invalid_item(request: Request, error: DataError) -> JSONResponse:
        return RequestError(422, "body", "what cannot be judged", _encodable(str(error))).response()

    @app.exception_handler(Exception)
    async def server_error(request: Request, error: Exception) -> JSONResponse:
        return RequestError(500, "server", type(error).__name__, "an answer; its log says more").response()


def _response(status: int, errors: Sequence[ErrorDetail], headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(ErrorAnswer(errors=list(errors)).model_dump(), status, headers)


def _invalid(loc: Sequence[object], msg: str, input: object = None, **_: object) -> ErrorDetail:  # noqa: A002
    """Return an error of pydantic's, with `("body", "items", 0, "prompt")` written as `items[0].prompt`."""
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc[1:])
    return ErrorDetail(
        place=_encodable(place.removeprefix(".")[:100]) or str(loc[0]),  # keys are the client's own
        got=short_repr(input),
        expected=msg.removeprefix("Input should be ").removeprefix("Value error, "),
    )


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
