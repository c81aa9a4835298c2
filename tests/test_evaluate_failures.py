"""Evaluations in which reward models fail in various ways or items are too long for them."""

from __future__ import annotations

import errno
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from conftest import Tal
from html_page import Page
from items import make_item
from loopback import Answer, Received, answering, completion
from reward_models.scripted import judged
from reward_models.tiny import write_classifier
from safetensors import SafetensorError

from think_as_locals.reward_models.scalar import ScalarRM

LONG_IDS = ("long-0", "long-1")
ITEMS = [
    make_item(
        id=f"{'long' if i < 2 else 'short'}-{i}",
        prompt=f"What is done on day {i}?",
        responses=("tea " * (300 if i < 2 else 1), f"rice {i}"),
        best=i % 2,
        group=f"g{i}",
    )
    for i in range(12)
]


class Evaluation(NamedTuple):
    words: list[str]
    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "evaluation"

    def read(self, path: str) -> Any:
        return json.loads((self.run / path).read_text(encoding="utf-8"))

    @property
    def ranked(self) -> list[list[str]]:
        """The names on each board."""
        return [sorted(model["name"] for model in board["models"]) for board in self.read("leaderboard.json")["boards"]]

    @property
    def failed(self) -> dict[str, str]:
        found = {each["model"]: each["message"] for each in self.read("leaderboard.json")["failed"]}
        recorded = sorted(path.stem for path in self.run.glob("failed/*.json"))
        assert sorted(found) == recorded
        return found


@pytest.fixture
def evaluation(tmp_path: Path) -> Evaluation:
    """Of a constant, and of classifiers: `good` reads everything, `short` 256 tokens."""
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(asdict(item)) + "\n" for item in ITEMS))
    words = [
        *("run", "recipes/carb.yaml", f"run.dir={tmp_path}", "run.name=evaluation", "data=jsonl"),
        *(f"data.path={tmp_path / 'items.jsonl'}", "eval.bootstrap_samples=50"),
        *classifier(tmp_path / "good", max_position_embeddings=4096),
        *classifier(tmp_path / "short"),
    ]
    return Evaluation(words, tmp_path)


def classifier(path: Path, **settings: Any) -> list[str]:
    write_classifier(path, **settings)
    return [f"rms.{path.name}=classifier", f"rms.{path.name}.path={path}", f"rms.{path.name}.batch_size=4"]


def server(name: str, url: str, *others: str) -> list[str]:
    keys = {"url": f"{url}/v1", "model": "m", "key_variable": "null", "deadline_s": "1", "concurrency": "1"}
    return [f"rms.{name}=server", *(f"rms.{name}.{key}={value}" for key, value in keys.items()), *others]


def judgement(request: Received) -> Answer:
    return completion(judged(request.body["messages"]))


@pytest.fixture
def silent() -> Iterator[tuple[str, threading.Event]]:
    """A server that answers five times and then waits for an event."""
    goes_on, asked = threading.Event(), list[Received]()

    def respond(request: Received) -> Answer:
        asked.append(request)
        if len(asked) > 5:
            goes_on.wait(10)
        return judgement(request)

    with answering(respond) as url:
        yield url, goes_on
        goes_on.set()


def make_classifiers_fail(errors: Mapping[str, BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let classifiers raise in their second batch."""
    scored, batches = ScalarRM._scored_batches, list[str]()

    def raises(self: ScalarRM, requests: Sequence[Any], rows: Sequence[Any]) -> Iterator[Any]:
        for batch in scored(self, requests, rows):
            batches.append(name := Path(self.path).name)
            if name in errors and batches.count(name) > 1:
                raise errors[name]
            yield batch

    monkeypatch.setattr(ScalarRM, "_scored_batches", raises)


def test_failed_models_are_reported_and_retried_on_resume(
    evaluation: Evaluation, silent: tuple[str, threading.Event], tal: Tal, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [evaluation.folder / name for name in ("full", "buggy", "weightless")]
    others = [word for folder in folders for word in classifier(folder, max_position_embeddings=4096)]
    words = [*evaluation.words, *others, *server("silent", silent[0])]
    weights = (evaluation.folder / "weightless/model.safetensors").rename(evaluation.folder / "weights")
    expected = {
        "buggy": "TypeError: [b]mid-way",
        "full": "OutOfMemoryError: CUDA out of memory",
        "short": "2 of 12 items are too long, or refused: 'long-0', 'long-1'. item 'long-0': response A has ",
        "silent": "failed: got no completion for 1 s",
        "weightless": "weightless has no weights, expected model.safetensors",
    }
    with monkeypatch.context() as patched:
        errors = {"full": torch.OutOfMemoryError("CUDA out of memory"), "buggy": TypeError("[b]mid-way")}
        make_classifiers_fail(errors, patched)
        done = tal(*words)
    assert done.status == 1
    assert evaluation.ranked == [["constant", "good"]]
    markdown = (evaluation.run / "leaderboard.md").read_text(encoding="utf-8")
    page = Page(evaluation.run / "leaderboard.html")
    assert evaluation.failed.keys() == expected.keys()
    for name, message in expected.items():
        assert message in evaluation.failed[name]
        assert f"{name} failed: " in done.err
        assert message.split(": ")[0] in page.row(f"{name} evaluation ")
        assert re.search(rf"\| {name} +\| evaluation +\| ", markdown)
    assert "failed       short, full, buggy, weightless, silent: run.resume=auto tries again" in done.err
    assert "Traceback" in evaluation.read("failed/buggy.json")["traceback"]
    assert evaluation.read("failed/short.json")["traceback"] is None

    weights.rename(evaluation.folder / "weightless/model.safetensors")
    silent[1].set()
    done = tal(*words, "run.resume=auto", "eval.too_long=wrong", "rms.silent.deadline_s=9")
    assert done.status == 0, done.out
    assert evaluation.ranked == [["buggy", "constant", "full", "good", "short", "silent", "weightless"]]
    assert evaluation.failed == {}
    assert "Failed" not in Page(evaluation.run / "leaderboard.html").text


def test_missing_reward_model_does_not_fail_the_others(evaluation: Evaluation, tal: Tal) -> None:
    gone = evaluation.folder / "gone"
    typo = ["rms.typo=judge", f"rms.typo.path={gone}", "rms.keyless=server", "rms.keyless.url=http://127.0.0.1:9/v1"]
    typo += ["rms.keyless.model=m", "rms.keyless.key_variable=TAL_NO_SUCH_KEY"]
    done = tal(*evaluation.words, *typo, "eval.too_long=wrong", "--json")
    assert (done.status, evaluation.ranked) == (1, [["constant", "good", "short"]])
    assert json.loads(done.out) == evaluation.read("leaderboard.json")
    assert evaluation.failed["typo"] == f"rms.typo.path: {gone}: neither a directory nor a Hub id (owner/name)"
    assert evaluation.failed["keyless"].startswith("TAL_NO_SUCH_KEY is not set")
    assert evaluation.read("failed/typo.json")["traceback"] is None
    others = [word for word in evaluation.words if not word.startswith(("rms.", "run.name"))]
    done = tal(*others, *typo[:2], "~rms.constant", "run.name=none")
    assert done.status == 2
    assert "neither a directory nor a Hub id (owner/name)" in done.err
    assert not (evaluation.folder / "none").exists()


@pytest.mark.parametrize(("how", "n"), [("exclude", 10), ("wrong", 12)])
def test_too_long_items_are_excluded_or_wrong_and_listed(how: str, n: int, evaluation: Evaluation, tal: Tal) -> None:
    done = tal(*evaluation.words, f"eval.too_long={how}", "eval.probes=true")
    assert done.status == 0, done.err
    summary, whole = (evaluation.read(f"carb/{name}.json") for name in ("short", "good"))
    assert (summary["n"], whole["n"]) == (n, 12)
    assert summary["too_long"] == {"exclude": [], "wrong": [], how: list(LONG_IDS)}
    assert whole["too_long"] == {"exclude": [], "wrong": []}
    assert summary["parse_failure"] == 0
    assert sum(part["n"] for part in summary["by_position"].values()) == 10
    # Over the ten both do the same; the two others are wrong, or not there.
    right = [row["credit"] for row in rows(evaluation, "short") if row["id"] not in LONG_IDS]
    assert summary["accuracy"] == pytest.approx(sum(right) / n)
    together = ["constant", "good", "short"]
    assert sorted(evaluation.ranked) == ([["constant", "good"], ["short"]] if how == "exclude" else [together])
    note = (
        f"2 items too long for it or refused, {'left out' if how == 'exclude' else 'counted as wrong'}: long-0, long-1"
    )
    assert f"warning: short: {note}" in done.err
    assert f"short: {note}" in Page(evaluation.run / "leaderboard.html").text
    assert f"short: {note}" in (evaluation.run / "leaderboard.md").read_text(encoding="utf-8")


def rows(evaluation: Evaluation, name: str) -> list[dict[str, Any]]:
    import pyarrow.parquet

    found: list[dict[str, Any]] = pyarrow.parquet.read_table(evaluation.run / f"carb/{name}.parquet").to_pylist()
    return found


def test_too_long_setting_can_change_on_resume_without_rescoring(
    evaluation: Evaluation, tal: Tal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tal(*evaluation.words).status == 1
    assert sorted(path.stem for path in evaluation.run.glob("carb/*.json")) == ["constant", "good"]
    make_classifiers_fail({name: AssertionError("asked again") for name in ("good", "short")}, monkeypatch)
    for how, n in (("exclude", 10), ("wrong", 12)):
        done = tal(*evaluation.words, "run.resume=auto", f"eval.too_long={how}")
        assert done.status == 0, done.out + done.err
        assert evaluation.read("carb/short.json")["n"] == n
    assert tal(*evaluation.words, "run.resume=auto").status == 1  # which is an error again


def test_resumed_evaluation_of_other_items_or_candidates_is_refused(evaluation: Evaluation, tal: Tal) -> None:
    items, candidates = (evaluation.folder / f"{name}.jsonl" for name in ("items", "candidates"))
    row = {"id": "1", "prompt": "?", "language": "en", "candidates": ["a", "b"], "qualities": [0, 1]}
    candidates.write_text(json.dumps(row))
    words = [*evaluation.words[:7], f"eval.candidates={candidates}"]
    assert tal(*words).status == 0
    for file in (items, candidates):
        whole = file.read_text()
        file.write_text(whole.replace("rice 3", "rice 4").replace("[0, 1]", "[1, 0]"))
        done = tal(*words, "run.resume=auto")
        assert (done.status, "the data differ from those that" in done.err) == (2, True), done.err
        file.write_text(whole)
    assert tal(*words, "run.resume=auto").status == 0


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (OSError(errno.ENOSPC, "No space left"), 2, "No space left: free the disk; then"),
        (OSError(errno.EROFS, "Read-only", "a"), 2, "a: Read-only: choose a folder that can be written to"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), 2, "free the disk; then"),
        (KeyboardInterrupt(), 75, "mine was asked to stop, and what it has is kept:"),
    ],
)
def test_full_disk_or_signal_ends_evaluation_with_resume_command(
    evaluation: Evaluation, tal: Tal, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, message: str
) -> None:
    make_classifiers_fail({"good": error}, monkeypatch)
    done = tal(*evaluation.words, "run.name=mine")
    assert (done.status, message in done.err) == (status, True), done.err
    assert done.err.endswith(" repeat the command with run.name=mine run.resume=auto\n")
    assert [path.name for path in (evaluation.folder / "mine" / "carb").glob("*.json")] == ["constant.json"]
    assert not (evaluation.folder / "mine" / "failed").exists()


def test_prompts_too_long_for_server_are_listed_and_the_rest_judged(evaluation: Evaluation, tal: Tal) -> None:
    answered = []

    def respond(request: Received) -> Answer:
        if "tea tea" in request.body["messages"][-1]["content"]:
            return 400, {"error": {"message": "This model's maximum context length is 99 tokens. However, ..."}}, {}
        answered.append(request)
        return judgement(request)

    words = [word for word in evaluation.words if not word.startswith("rms.")]
    with answering(respond) as url:
        words += server("served", url)
        assert tal(*words).status == 1
        assert (
            "2 of 12 items are too long, or refused: 'long-0', 'long-1'. the server at " in evaluation.failed["served"]
        )
        assert "maximum context length is 99 tokens" in evaluation.failed["served"]
        assert len(answered) == 10
        assert tal(*words, "run.resume=auto", "eval.too_long=wrong").status == 0
    assert len(answered) == 10  # the journal has their answers
    assert evaluation.read("carb/served.json")["too_long"]["wrong"] == list(LONG_IDS)
