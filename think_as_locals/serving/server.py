"""The server: a key where others can reach it, a judge, and an end that lets requests under way be answered."""

from __future__ import annotations

import ipaddress
import math
import os
import signal
import socket
import sys

import uvicorn

from think_as_locals.models.load import load_judge
from think_as_locals.serve_schema import ServeConfig
from think_as_locals.serving.app import create_app
from think_as_locals.types import ConfigError

KEY_VARIABLE = "TAL_API_KEY"
_SHORTEST_KEY = 16  # characters


def serve(config: ServeConfig) -> None:
    """Load a judge and answer requests until SIGTERM or SIGINT; those under way have `grace_s` then.

    Raises:
        ConfigError: others could reach the server without a key, the key is none, or the address cannot be taken.
    """
    key = key_for(config.host)
    _check_address(config.host, config.port)  # a model may take minutes to load
    # Uvicorn raises the signal again when it is done; this ends the process as a whole, engines included.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.run(
        create_app(load_judge(config.judge, config.seed), config, key),
        host=config.host,
        port=config.port,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # else a client could say that it is another one
        http="h11",  # bounds the headers of a request, which come before any key; httptools takes any amount
        ws="none",
        timeout_graceful_shutdown=math.ceil(config.grace_s),
    )


def _check_address(host: str, port: int) -> None:
    """See that a server can listen there."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found[:1]:
            with socket.socket(family, kind, protocol) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
    except OSError as error:
        raise ConfigError(
            f"cannot listen at host={host} port={port} ({error.strerror}): set port (0 takes any that is free), and as "
            "host an address of this machine"
        ) from error


def key_for(host: str) -> str | None:
    """The key that requests have to carry: `TAL_API_KEY`, where it is set or has to be.

    Raises:
        ConfigError: it is not set and others could reach the host, or it can be none.
    """
    key = os.environ.get(KEY_VARIABLE)
    if key is None:
        if is_loopback(host):
            return None
        raise ConfigError(
            f"host={host} can be reached from elsewhere: put a key into {KEY_VARIABLE} "
            f"(export {KEY_VARIABLE}=$(openssl rand -hex 32)), or stay on host=127.0.0.1"
        )
    if len(key) < _SHORTEST_KEY or not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(f"{KEY_VARIABLE} holds no key: expected {_SHORTEST_KEY} or more printable ASCII characters")
    return key


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; of a name other than localhost nobody knows.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("judge.example")
        (True, True, False, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
