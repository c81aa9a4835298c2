"""`tal serve`: configuration, key, and a shutdown that completes requests in flight."""

from __future__ import annotations

import ipaddress
import math
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import uvicorn

from think_as_locals.config.checks import validate_as
from think_as_locals.config.compose import ASSETS, compose_recipe, quoted
from think_as_locals.config.model_schema import ServeConfig
from think_as_locals.reward_models.load import load_judge
from think_as_locals.serving.app import create_app
from think_as_locals.types import ConfigError

KEY_VARIABLE = "TAL_API_KEY"


def load_server(model: str, overrides: Sequence[str] = ()) -> ServeConfig:
    """Compose conf/serve.yaml with a judge and overrides, and validate it."""
    values = compose_recipe(ASSETS / "conf" / "serve.yaml", [f"judge.path={quoted(model)}", *overrides])
    return validate_as(ServeConfig, values)


def serve(config: ServeConfig) -> None:
    """Load a judge and answer requests until SIGTERM or SIGINT; requests in flight then have `grace_s` to finish."""
    key = required_key(config.host)
    # Uvicorn raises the signal again at its end; this handler ends the whole process with its engines.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with load_judge(config.judge, config.seed) as judge:
        uvicorn.run(
            create_app(judge, config, key),
            host=config.host,
            port=config.port,
            access_log=False,
            server_header=False,
            http="h11",  # which limits the size of headers
            ws="none",
            limit_concurrency=config.limit_concurrency,
            timeout_keep_alive=config.timeout_keep_alive,
            timeout_graceful_shutdown=math.ceil(config.grace_s),
        )


def required_key(host: str) -> str | None:
    """Return the key that requests must have, from `TAL_API_KEY`; `None` if it is unset and the host is loopback."""
    if key := os.environ.get(KEY_VARIABLE):
        return key
    with suppress(ValueError):  # another name
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return None
    raise ConfigError(
        f"host={host} can be reached from other machines: put a key into {KEY_VARIABLE} "
        f"(export {KEY_VARIABLE}=$(openssl rand -hex 32)), or stay on host=127.0.0.1"
    )
