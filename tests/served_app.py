"""An app behind a real server: in a thread of this process, or in a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from conftest import command

from think_as_locals.serving.app import KEY_VARIABLE


@contextmanager
def serving(app: Any, **options: Any) -> Iterator[str]:
    """An app behind a real server on a free port; yields its url."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, ws="none", log_level="critical", **options))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def tal_serve(
    python: str, folder: Path, model: str, *overrides: str, key: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`tal serve` with a key, in a folder, on a free port; yields the process and its url once it listens."""
    process = subprocess.Popen(
        [command("tal", python), "serve", model, "port=0", *overrides],
        cwd=folder,
        env={**os.environ, KEY_VARIABLE: key, "HF_HUB_OFFLINE": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"running on (http://127\.0\.0\.1:\d+)", line):
                yield process, found[1]
                break
        else:
            raise AssertionError(f"it ended with status {process.wait()}")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
