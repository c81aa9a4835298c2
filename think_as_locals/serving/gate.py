"""Middleware before every route: the key, the rate of a client, requests in flight, length and time of a body."""

from __future__ import annotations

import hmac
import math
import time

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from think_as_locals.config.schema import LimitsSection
from think_as_locals.serving.errors import RequestError

_OPEN_ROUTE = "/health"
_MINUTE = 60.0
_MAX_CLIENTS = 4096  # remembered before those that have been idle are forgotten


class Rate:
    """Limit each client to so many requests per minute, by the generic cell rate algorithm: one number per client.

    Example:
        >>> rate = Rate(2)
        >>> [rate.wait_s("10.0.0.1", now) for now in (0.0, 0.0, 0.0, 30.0)]
        [0.0, 0.0, 30.0, 0.0]
    """

    def __init__(self, per_minute: int) -> None:
        self._interval = _MINUTE / per_minute
        self._due: dict[str, float] = {}  # when a client will have its full allowance again

    def wait_s(self, client: str, now: float) -> float:
        """Return the seconds until the client may send a request; 0 means now, and counts it."""
        due = max(self._due.get(client, now), now) + self._interval
        if due - now > _MINUTE + 1e-9:
            return due - now - _MINUTE
        if len(self._due) >= _MAX_CLIENTS:
            self._due = {name: until for name, until in self._due.items() if until > now}
        self._due[client] = due
        return 0.0


class Gate:
    """ASGI middleware that refuses requests beyond the limits or without the key as bearer token; /health is open."""

    def __init__(self, app: ASGIApp, limits: LimitsSection, key: str | None) -> None:
        self._app = app
        self._limits = limits
        self._authorization = None if key is None else f"Bearer {key}".encode()
        self._rate = Rate(limits.requests_per_minute)
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] == _OPEN_ROUTE:
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except RequestError as error:
            await error.response()(scope, receive, send)
            return
        self._in_flight += 1
        try:
            await self._app(scope, _limit_body(receive, self._limits), send)
        finally:
            self._in_flight -= 1

    def _check(self, scope: Scope) -> None:
        client = scope["client"][0] if scope.get("client") else ""
        # Before the key, so that guesses at it are limited as well.
        if wait := self._rate.wait_s(client, time.monotonic()):
            expected = f"at most {self._limits.requests_per_minute} requests in a minute; try again in {wait:.1f} s"
            headers = {"Retry-After": str(math.ceil(wait))}
            raise RequestError(429, "request", "more requests than one client may send", expected, headers)
        authorization = Headers(scope=scope).get("authorization", "").encode()
        if self._authorization is not None and not hmac.compare_digest(authorization, self._authorization):
            got, headers = "another key" if authorization else "no key", {"WWW-Authenticate": "Bearer"}
            raise RequestError(401, "authorization", got, "Bearer and the server's key", headers)
        if self._in_flight >= self._limits.requests_at_once:
            got = f"{self._in_flight} requests in flight"
            raise RequestError(503, "request", got, "fewer; try again in a second", {"Retry-After": "1"})


def _limit_body(receive: Receive, limits: LimitsSection) -> Receive:
    """Limit length and time of a body, so that slow senders cannot keep others out."""
    length, complete, ends = 0, False, time.monotonic() + limits.body_s

    async def limited() -> Message:
        nonlocal length, complete
        try:
            # Behind the body comes only the disconnect, at any time.
            with anyio.fail_after(None if complete else ends - time.monotonic()):
                message = await receive()
        except TimeoutError:
            got, expected = f"{length} bytes of it", f"all of it within {limits.body_s:g} s"
            raise RequestError(408, "body", got, expected, {"Connection": "close"}) from None
        length, complete = length + len(message.get("body", b"")), not message.get("more_body", False)
        if length > limits.body_bytes:
            raise RequestError(413, "body", "a longer one", f"at most {limits.body_bytes} bytes")
        return message

    return limited
