"""`tal serve`: configuration, key and address, and a shutdown that completes requests in flight."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import os
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from think_as_locals.config.checks import validate_as
from think_as_locals.config.compose import ASSETS, compose_recipe, quoted
from think_as_locals.config.model_schema import LimitsSection, ServeConfig
from think_as_locals.reward_models.load import load_judge
from think_as_locals.serving.app import create_app
from think_as_locals.types import ConfigError

KEY_VARIABLE = "TAL_API_KEY"
_MIN_KEY_LENGTH = 16


def load_server(model: str, overrides: Sequence[str] = ()) -> ServeConfig:
    """Compose conf/serve.yaml with a judge and overrides, and validate it."""
    values = compose_recipe(ASSETS / "conf" / "serve.yaml", [f"judge.path={quoted(model)}", *overrides])
    return validate_as(ServeConfig, values)


def serve(config: ServeConfig) -> None:
    """Load a judge and answer requests until SIGTERM or SIGINT; requests in flight then have `grace_s` to finish."""
    key = required_key(config.host)
    _check_address(config.host, config.port)  # before the model, which may take minutes to load
    # Uvicorn raises the signal again at its end; this handler ends the whole process with its engines.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with load_judge(config.judge, config.seed) as judge:
        uvicorn.run(
            create_app(judge, config, key),
            host=config.host,
            port=config.port,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # else a client could claim another address
            http=partial(BoundedConnection, limits=config.limits),  # type: ignore[arg-type]  # a factory
            ws="none",
            timeout_graceful_shutdown=math.ceil(config.grace_s),
        )


class BoundedConnection(H11Protocol):
    """A connection that is refused if there are too many, and closed if no request arrives on it.

    h11 limits the size of headers, which come before any key, but not their time; httptools limits neither.
    """

    def __init__(self, *args: Any, limits: LimitsSection, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, or close it at once."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.abort()
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        self._timer = self.loop.call_later(self._limits.headers_s, self._close_if_idle, self.cycle)

    def _close_if_idle(self, last: Any) -> None:
        """Close the connection if no request is in flight and none came since `last`."""
        if self.cycle is last and (last is None or last.response_complete):
            self.transport.abort()
        else:
            self._watch()


def _check_address(host: str, port: int) -> None:
    """Raise a `ConfigError` unless a server can listen there."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found[:1]:
            with socket.socket(family, kind, protocol) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
    except OSError as error:
        raise ConfigError(
            f"cannot listen at host={host} port={port} ({error.strerror}): set port (0 takes any free one), and as "
            "host an address of this machine"
        ) from error


def required_key(host: str) -> str | None:
    """Return the key that requests must have, from `TAL_API_KEY`; `None` if it is unset and the host is loopback."""
    key = os.environ.get(KEY_VARIABLE)
    if key is None:
        try:
            loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if loopback:
            return None
        raise ConfigError(
            f"host={host} can be reached from other machines: put a key into {KEY_VARIABLE} "
            f"(export {KEY_VARIABLE}=$(openssl rand -hex 32)), or stay on host=127.0.0.1"
        )
    if len(key) < _MIN_KEY_LENGTH or not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(f"{KEY_VARIABLE} holds no key: expected {_MIN_KEY_LENGTH} or more printable ASCII characters")
    return key
