"""A small Hub on loopback that the real client talks to: repositories, branches, commits, large files, and faults."""

from __future__ import annotations

import base64
import hashlib
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


def git_sha(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324 - as git does


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Repository:
    """Branches are lists of commits, a commit is what each path holds."""

    private: bool
    branches: dict[str, list[Files]] = field(default_factory=lambda: {"main": [dict(ATTRIBUTES)]})

    def files(self, branch: str = "main") -> Files:
        """What was pushed."""
        return {path: content for path, content in self.branches[branch][-1].items() if path not in ATTRIBUTES}

    def head(self, branch: str) -> str:
        return sha256(f"{branch} {len(self.branches[branch])}".encode())[:40]


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
        # Large files go to a store that is addressed by what only the Hub hands out, and gets no token.
        if not path.startswith("/store/") and request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return JSONResponse({"error": "Invalid username or password."}, 401)
        status, answer = self._answer(path, body)
        return JSONResponse(answer, status, {"X-Error-Code": answer["code"]} if "code" in answer else {})

    def _answer(self, path: str, body: bytes) -> tuple[int, Any]:
        if path.startswith("/store/"):
            self.stored[path.removeprefix("/store/")] = body
            return 200, {}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path.endswith(".git/info/lfs/objects/batch"):
            return 200, {"transfer": "basic", "objects": [self._upload(o) for o in json.loads(body)["objects"]]}
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|branch|preupload|commit)/([^/]+))?", path)
        assert found, f"a request that the fake does not know: {path}"
        name, verb, revision = found[1], found[2], found[3] or "main"
        if name not in self.repositories:
            return 404, {"error": "Repository not found", "code": "RepoNotFound"}
        return self._of_repository(name, verb, revision, body)

    def _create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        name = f"{asked['organization']}/{asked['name']}"
        url = {"url": f"{self.url}/{name}"}
        if name in self.repositories:
            return 409, {"error": "You already created this model repo", **url}
        self.repositories[name] = Repository(asked.get("visibility") == "private" or asked.get("private") is True)
        return 200, url

    def _upload(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Where a large file goes; nowhere where it is here already."""
        if wanted["oid"] in self.stored:
            return wanted
        return {**wanted, "actions": {"upload": {"href": f"{self.url}/store/{wanted['oid']}"}}}

    def _of_repository(self, name: str, verb: str | None, revision: str, body: bytes) -> tuple[int, Any]:
        repository = self.repositories[name]
        branches = repository.branches
        if verb == "branch":
            if revision in branches:
                return 409, {"error": "Reference already exists"}
            branches[revision] = [dict(branches["main"][-1])]
            return 201, {}
        branch = next((each for each in branches if repository.head(each) == revision), revision)
        files = branches[branch][-1]
        if verb == "tree":
            return 200, [_entry(path, content) for path, content in sorted(files.items())]
        if verb == "preupload":
            return 200, {"files": [_mode(asked["path"], files) for asked in json.loads(body)["files"]]}
        if verb == "commit":
            header, *lines = map(json.loads, body.splitlines())
            if header["value"].get("parentCommit") not in (None, repository.head(branch)):
                return 412, {"error": "the branch has moved on"}
            branches[branch].append(self._changed(files, lines))
            oid = repository.head(branch)
            return 200, {"commitUrl": f"{self.url}/{name}/commit/{oid}", "commitOid": oid}
        return 200, {"id": name, "private": repository.private, "sha": repository.head(branch), "siblings": []}

    def _changed(self, files: Files, lines: list[Any]) -> Files:
        files = dict(files)
        for key, value in ((line["key"], line["value"]) for line in lines):
            if key == "deletedFile":
                del files[value["path"]]
            else:
                large = key == "lfsFile"
                files[value["path"]] = self.stored[value["oid"]] if large else base64.b64decode(value["content"])
        return files


def _entry(path: str, content: bytes) -> dict[str, Any]:
    entry = {"type": "file", "path": path, "size": len(content), "oid": git_sha(content)}
    if path.endswith(".safetensors"):
        entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 134}
    return entry


def _mode(path: str, files: Files) -> dict[str, Any]:
    large = path.endswith(".safetensors")
    mode = {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
    return mode | ({"oid": (sha256 if large else git_sha)(files[path])} if path in files else {})


@contextmanager
def serving() -> Iterator[FakeHub]:
    """A Hub for the time of a `with` statement."""
    hub = FakeHub()
    app = Starlette(routes=[Route("/{path:path}", hub.respond, methods=["GET", "POST", "PUT"])])
    with served_app.serving(app) as hub.url:
        yield hub
