"""Pushes to a fake Hub by the real client and by `tal push`: what is sent, what never is, and faults."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
from pathlib import Path
from typing import Any, get_args

import pytest
from conftest import Tal
from hub.fake_hub import TOKEN, FakeHub, Repository
from hub.small_runs import REPO
from huggingface_hub import HfApi

from think_as_locals.hub.push import HubError, Pushed, prepare, upload
from think_as_locals.types import ConfigError, RubricLanguage

PLANTED = b"what was planted here"
FROM_MODEL = {
    *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    *("chat_template.jinja", "tal_judge.json", "training_items.txt"),
}
MADE = {
    *("README.md", "carb/step-30.json"),
    *(f"prompt/{name}.txt" for name in ("grammar", "unknown_culture", "user", "user_hidden", "response")),
    *(f"prompt/rubric_language_{choice}.txt" for choice in get_args(RubricLanguage)),
}


def push(
    run: Path, api: HfApi, *, public: bool = False, update: bool = False, revision: str | None = None, repo: str = REPO
) -> Pushed:
    return upload(prepare(run, repo).files, repo, public=public, update=update, revision=revision, api=api)


def test_push_sends_exactly_the_allowed_files(run: Path, hub: FakeHub, api: HfApi, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_bytes(PLANTED)
    for name in ("optimizer.pt", "training_args.bin", ".env", "notes.md", "model.safetensors.bak"):
        (run / "model" / name).write_bytes(PLANTED)
    for name, target in (("vocab.json", Path("/etc/passwd")), ("merges.txt", tmp_path / "secret.txt")):
        (run / "model" / name).symlink_to(target)
        with pytest.raises(ConfigError, match=f"{name} is a link, and none is followed"):
            push(run, api)
        (run / "model" / name).unlink()
    with pytest.raises(ConfigError, match=r"--license other.*model/LICENSE"):
        prepare(run, REPO, licence="other")
    (run / "model" / "LICENSE").write_text("Free.\n")
    (run / "model" / "checkpoint").mkdir()
    push(run, api)
    files = hub.repositories[REPO].files()
    assert set(files) == FROM_MODEL | MADE | {"LICENSE"}
    for name in (*FROM_MODEL, "LICENSE"):
        assert files[name] == (run / "model" / name).read_bytes(), name
    assert files["carb/step-30.json"] == (run / "carb" / "step-30.json").read_bytes()
    assert hub.repositories[REPO].private
    sent = b"".join([*files.values(), *hub.stored.values(), *(body for *_, body in hub.requests)])
    for never in (PLANTED, b"root:", b"training_args.bin", b"optimizer.pt", b"vocab.json", b"merges.txt"):
        assert never not in sent, never


def test_token_goes_to_the_hub_alone_whose_repository_is_private(run: Path, hub: FakeHub, api: HfApi) -> None:
    push(run, api)
    for method, path, headers, body in hub.requests:
        assert TOKEN.encode() not in body
        assert (TOKEN in str(headers)) == (not path.startswith("/store/")), (method, path)
    assert not push(run, api, public=True, repo="people/open").private
    assert not hub.repositories["people/open"].private
    with pytest.raises(ConfigError, match="people/open is public: pass --public"):
        push(run, api, repo="people/open")


def test_same_command_succeeds_after_a_failure(run: Path, hub: FakeHub, api: HfApi) -> None:
    hub.fails_to_commit = True
    with pytest.raises(HubError, match="run the same command again"):
        push(run, api)
    assert hub.repositories[REPO].files() == {}
    hub.fails_to_commit = False
    push(run, api)
    repository = hub.repositories[REPO]
    assert set(repository.files()) == FROM_MODEL | MADE
    assert repository.files()["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()
    assert push(run, api, update=True).removed == ()


def test_existing_files_are_overwritten_only_with_update(run: Path, hub: FakeHub, api: HfApi) -> None:
    repository = hub.repositories[REPO] = Repository(private=True)
    theirs = {"photo.png": b"a photo", "LICENSE": b"Mine.", "vocab.json": b"{}"}
    theirs |= {"model-00001-of-00002.safetensors": b"old"}
    repository.branches["main"] |= theirs
    with pytest.raises(HubError, match=r"holds 4 files already .*--update replaces"):
        push(run, api)
    assert repository.files() == theirs
    pushed = push(run, api, update=True, revision="seed-3")
    assert pushed.removed == ("model-00001-of-00002.safetensors", "vocab.json")
    assert set(repository.files("seed-3")) == FROM_MODEL | MADE | {"photo.png", "LICENSE"}
    assert repository.files() == theirs  # the other branch
    settings = run / "model" / "tal_judge.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "seed": 5}))
    push(run, api, update=True, revision="seed-3")
    assert json.loads(repository.files("seed-3")["tal_judge.json"])["seed"] == 5


def test_push_without_a_valid_login_fails(run: Path, hub: FakeHub) -> None:
    with pytest.raises(HubError, match="hf auth login") as raised:
        push(run, HfApi(endpoint=hub.url, token="hf_wrong"))  # noqa: S106
    assert "hf_wrong" not in str(raised.value)


def test_dry_run_shows_all_files_without_network_access(run: Path, tal: Tal, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError(f"a connection to {arguments}")

    (run / "model" / "optimizer.pt").write_bytes(b"")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    words = ["push", str(run), "--repo", REPO, "--dry-run"]
    output = tal(*words).out
    assert "left out  model/'optimizer.pt': not on the list" in output
    sent = {name: (run / "model" / name).read_bytes() for name in FROM_MODEL}
    sent["carb/step-30.json"] = (run / "carb" / "step-30.json").read_bytes()
    listed = re.findall(r"(?m)^ *([\d,]+)  ([0-9a-f]{64})  (.+)$", output)
    assert {path for _, _, path in listed} == FROM_MODEL | MADE
    for size, digest, path in listed:
        if path not in sent:  # what was written for the Hub is printed as it would be sent
            sent[path] = output.split(f"==== {path}\n")[1].encode()[: int(size.replace(",", ""))]
        assert (f"{len(sent[path]):,}", hashlib.sha256(sent[path]).hexdigest()) == (size, digest), path
    document = json.loads(tal(*words, "--json").out)
    assert (document["repo"], document["private"], document["url"]) == (REPO, True, None)
    assert [file["path"] for file in document["files"]] == [path for _, _, path in listed]
    assert [f"{file['size']:,}" for file in document["files"]] == [size for size, _, _ in listed]
    assert document["left_out"] == ["model/'optimizer.pt': not on the list of files that are pushed"]


@pytest.mark.slow
def test_push_command_sends_a_trained_run(
    small_run: Path, hub: FakeHub, tmp_path: Path, tal: Tal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    run = Path(shutil.copytree(small_run, tmp_path / "runs" / "small"))
    assert not (run / "model" / "training_args.bin").exists()  # a pickle
    (run / "model" / "notes.md").write_text("mine")
    done = tal("push", str(run), "--repo", "people/small")
    assert done.status == 0, done.out + done.err
    repository = hub.repositories["people/small"]
    files = repository.files()
    assert f"sent      {len(files)} files, private" in done.out
    assert f"{hub.url}/people/small/commit/main" in done.out
    assert "left out  model/'notes.md'" in done.out
    assert TOKEN not in done.out + done.err
    assert set(files) == {*FROM_MODEL, *MADE - {"carb/step-30.json"}, "carb/step-2.json"}
    assert "**CPU hours**: 0.0" in files["README.md"].decode()
    assert {name for name in FROM_MODEL if files[name] == (run / "model" / name).read_bytes()} == FROM_MODEL
