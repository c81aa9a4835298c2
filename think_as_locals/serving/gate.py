"""What stands before every route: the key, the rate of a client, how much is under way, length and time of a body."""

from __future__ import annotations

import hmac
import math
import time

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from think_as_locals.serve_schema import LimitsSection
from think_as_locals.serving.faults import Refusal, answer

_OPEN = "/health"
_MINUTE = 60.0
_MOST_CLIENTS = 4096  # remembered before those that have been quiet are forgotten


class Rate:
    """How often a client may come, by the generic cell rate algorithm: one number for each client.

    Args:
        per_minute: How many requests a client may send in a minute on average; after a quiet minute, all at once.

    Example:
        >>> rate = Rate(2)
        >>> [rate.wait_s("10.0.0.1", now) for now in (0.0, 0.0, 0.0, 30.0)]
        [0.0, 0.0, 30.0, 0.0]
    """

    def __init__(self, per_minute: int) -> None:
        self._interval = _MINUTE / per_minute
        self._due: dict[str, float] = {}  # when a client will have used up nothing

    def wait_s(self, client: str, now: float) -> float:
        """Seconds until a request of this client may come; 0 where it may now, and counts."""
        due = max(self._due.get(client, now), now) + self._interval
        if due - now > _MINUTE + 1e-9:
            return due - now - _MINUTE
        if len(self._due) >= _MOST_CLIENTS:
            self._due = {name: until for name, until in self._due.items() if until > now}
        self._due[client] = due
        return 0.0


class Gate:
    """ASGI middleware that lets through what the limits and the key allow; /health is open.

    Args:
        app: What stands behind it.
        limits: How much a request, and a client, may ask for.
        key: That each request has to carry as `Authorization: Bearer KEY`; `None` asks for none.
    """

    def __init__(self, app: ASGIApp, limits: LimitsSection, key: str | None) -> None:
        self._app = app
        self._limits = limits
        self._expected = None if key is None else f"Bearer {key}".encode()
        self._rate = Rate(limits.requests_per_minute)
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] == _OPEN:
            await self._app(scope, receive, send)
            return
        try:
            self._admit(scope)
        except Refusal as refusal:
            await answer(refusal.status_code, [refusal.fault], refusal.headers)(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._app(scope, _bounded(receive, self._limits), send)
        finally:
            self._under_way -= 1

    def _admit(self, scope: Scope) -> None:
        limits = self._limits
        client = scope["client"][0] if scope.get("client") else ""
        # Before the key: how often one may guess is limited as well.
        if wait := self._rate.wait_s(client, time.monotonic()):
            most = f"at most {limits.requests_per_minute} requests in a minute; try again in {wait:.1f} s"
            raise Refusal(429, "request", "more requests than one client may send", most, _retry(wait))
        given = Headers(scope=scope).get("authorization", "").encode()
        if self._expected is not None and not hmac.compare_digest(given, self._expected):
            got = "another key" if given else "no key"
            raise Refusal(401, "authorization", got, "Bearer and the server's key", {"WWW-Authenticate": "Bearer"})
        if self._under_way >= limits.requests_at_once:
            got = f"{self._under_way} requests under way"
            raise Refusal(503, "request", got, "fewer; try again in a second", _retry(1.0))


def _bounded(receive: Receive, limits: LimitsSection) -> Receive:
    """The body of a request, up to a length and a time: who sends it drop by drop must not keep others out."""
    taken, whole, ends = 0, False, time.monotonic() + limits.body_s

    async def bounded() -> Message:
        nonlocal taken, whole
        try:
            # After the body there is only the client's leaving to wait for.
            with anyio.fail_after(None if whole else ends - time.monotonic()):
                message = await receive()
        except TimeoutError:
            expected = f"all of it within {limits.body_s:g} s"
            raise Refusal(408, "body", f"{taken} bytes of it", expected, {"Connection": "close"}) from None
        taken, whole = taken + len(message.get("body", b"")), not message.get("more_body", False)
        if taken > limits.body_bytes:
            raise Refusal(413, "body", "a longer one", f"at most {limits.body_bytes} bytes")
        return message

    return bounded


def _retry(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(math.ceil(seconds))}
