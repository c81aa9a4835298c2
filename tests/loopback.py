"""An HTTP server on loopback that answers what a function returns."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

HANGS_UP = 0  # instead of a status


class Received(NamedTuple):
    path: str
    headers: HTTPMessage
    body: Any


Answer = tuple[int, Any, dict[str, str]]
"""Status, content (text and bytes as they are, else JSON) and headers."""


def completion(text: str | None, finish_reason: str | None = "stop", **choice: Any) -> Answer:
    """A chat completion as OpenAI's API has it."""
    message = {"role": "assistant", "content": text}
    return 200, {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason, **choice}]}, {}


@contextmanager
def writing(
    writes: Callable[[int, str], str], kind_of: Callable[[str], str] = lambda prompt: ""
) -> Iterator[tuple[str, list[Any]]]:
    """The address of a model, and the bodies of the requests that it gets, each with the kind of its prompt.

    What it writes is a function of the number of the try and the prompt. The seeds of a kind of prompts number its
    tries in the order in which they come. A request for which nothing is written is refused.
    """
    asked: list[Any] = []

    def respond(request: Received) -> Answer:
        prompt = request.body["messages"][-1]["content"]
        asked.append({**request.body, "kind": kind_of(prompt)})
        seeds = list(dict.fromkeys(each.get("seed") for each in asked if each["kind"] == asked[-1]["kind"]))
        text = writes(seeds.index(request.body.get("seed")), prompt)
        return completion(text) if text else (400, "no more", {})

    with answering(respond) as url:
        yield f"{url}/v1", asked


def until(limit: list[int], answered: Counter[Any], writes: Callable[[int, str], str]) -> Callable[[int, str], str]:
    """The same, which writes nothing once it has answered so often; what it answered is counted."""

    def breaks_down(number: int, prompt: str) -> str:
        if answered.total() >= limit[0]:
            return ""
        answered[number, prompt] += 1
        return writes(number, prompt)

    return breaks_down


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no error here."""


@contextmanager
def answering(respond: Callable[[Received], Answer]) -> Iterator[str]:
    """The address of a server that is up meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits 40 ms for the client to acknowledge its headers

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            status, content, headers = respond(Received(self.path, self.headers, json.loads(body or "null")))
            if status == HANGS_UP:
                self.close_connection = True
                return
            is_json = not isinstance(content, str | bytes)
            text = json.dumps(content) if is_json else content
            sent = text.encode() if isinstance(text, str) else text
            kind = {"Content-Type": "application/json"} if is_json else {}
            self.send_response(status)
            for name, value in {**kind, **headers, "Content-Length": str(len(sent))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(sent)

        do_GET = do_HEAD = do_POST = answer  # noqa: N815  (names that the base class looks for)

        def log_message(self, *_: Any) -> None:
            pass

    with _Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
