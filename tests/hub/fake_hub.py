"""A small Hub on loopback that the real client talks to: repositories, branches, commits, large files, and faults."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import served_app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TOKEN = "hf_" + "fakeTokenOfTheTests" * 2
Files = dict[str, bytes]
ATTRIBUTES: Files = {".gitattributes": b"*.safetensors filter=lfs\n"}


@dataclass
class Repository:
    """What the branches hold by path."""

    private: bool
    branches: dict[str, Files] = field(default_factory=lambda: {"main": dict(ATTRIBUTES)})

    def files(self, branch: str = "main") -> Files:
        """What was pushed."""
        return {path: content for path, content in self.branches[branch].items() if path not in ATTRIBUTES}


@dataclass
class FakeHub:
    """Its state; `url` is where it listens, and what HF_ENDPOINT is set to."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    stored: Files = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    fails_to_commit: bool = False

    async def respond(self, request: Request) -> Response:
        method, path, body = request.method, request.url.path, await request.body()
        self.requests.append((method, path, dict(request.headers), body))
        if self.fails_to_commit and "/commit/" in path:
            return JSONResponse({"error": "not now"}, 500)
        if path.startswith("/store/"):  # large files, at addresses that only the Hub hands out, get no token
            self.stored[path.removeprefix("/store/")] = body
            return JSONResponse({})
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return JSONResponse({"error": "Invalid username or password."}, 401)
        status, answer = self._answer(path, body)
        return JSONResponse(answer, status, {"X-Error-Code": answer["code"]} if "code" in answer else {})

    def _answer(self, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name, private = f"{asked['organization']}/{asked['name']}", asked.get("visibility") == "private"
            self.repositories[name] = Repository(private or asked.get("private") is True)
            return 200, {"url": f"{self.url}/{name}"}
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {**each, "actions": {"upload": {"href": f"{self.url}/store/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            return 200, {"transfer": "basic", "objects": objects}
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|branch|preupload|commit)/([^/]+))?", path)
        assert found, f"a request that the fake does not know: {path}"
        if found[1] not in self.repositories:
            return 404, {"error": "Repository not found", "code": "RepoNotFound"}
        return self._of_repository(found[1], found[2], found[3] or "main", body)

    def _of_repository(self, name: str, verb: str | None, branch: str, body: bytes) -> tuple[int, Any]:
        repository = self.repositories[name]
        branches = repository.branches
        if verb == "branch":
            if branch in branches:
                return 409, {"error": "Reference already exists"}
            branches[branch] = dict(branches["main"])
            return 201, {}
        if verb == "tree":
            return 200, [{"type": "file", "path": path, "size": 1, "oid": "0" * 40} for path in branches[branch]]
        if verb == "preupload":
            paths = [each["path"] for each in json.loads(body)["files"]]
            return 200, {"files": [_mode(path) for path in paths]}
        if verb == "commit":
            _, *changes = map(json.loads, body.splitlines())
            for key, value in ((change["key"], change["value"]) for change in changes):
                if key == "deletedFile":
                    del branches[branch][value["path"]]
                else:
                    content = self.stored[value["oid"]] if key == "lfsFile" else base64.b64decode(value["content"])
                    branches[branch][value["path"]] = content
            return 200, {"commitUrl": f"{self.url}/{name}/commit/{branch}", "commitOid": "0" * 40}
        return 200, {"id": name, "private": repository.private, "siblings": []}


def _mode(path: str) -> dict[str, Any]:
    large = path.endswith(".safetensors")
    return {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}


@contextmanager
def serving() -> Iterator[FakeHub]:
    """A Hub for the time of a `with` statement."""
    hub = FakeHub()
    app = Starlette(routes=[Route("/{path:path}", hub.respond, methods=["GET", "POST", "PUT"])])
    with served_app.serving(app) as hub.url:
        yield hub
