"""The downstream recipe: sampling candidates, selecting with reward models, and reporting r2."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import Tal
from items import day_items
from loopback import Answer, Received, answering, completion, until, writing
from reward_models.scripted import judged
from reward_models.tiny import write_classifier

from think_as_locals.data.load import read_candidates
from think_as_locals.data.sources import jsonl
from think_as_locals.types import DataWarning

ITEMS = day_items(6, "rest on {}", "work for long hours on day {}", "dance {}")
BEST_RESPONSES = {item.responses[item.best] for item in ITEMS}


def kind_of(prompt: str) -> str:
    return "to judge" if "<response" in prompt else "to answer"


def letter(prompt: str, right: bool) -> str:
    found = re.findall(r"^([A-D])\. (.+)$", prompt, re.MULTILINE)
    return next(label for label, text in found if (text in BEST_RESPONSES) == right)


def improving_answer(number: int, prompt: str) -> str:
    """Says nothing, then is wrong, then right; as a judge it chooses the longest response."""
    if kind_of(prompt) == "to judge":
        return judged([{"role": "user", "content": prompt}])
    if number == 0:
        return " "
    said = f"{'I have thought about it. ' * number}\nAnswer: {letter(prompt, number > 1)}"
    return f"<think>Answer: {letter(prompt, number < 2)}</think>\n{said}"


def words(folder: Path, url: str) -> list[str]:
    if not (folder / "items.jsonl").exists():
        jsonl.write(ITEMS, folder / "items.jsonl")
    policy = ["sample.policy=server", f"sample.policy.url={url}", "sample.policy.model=small"]
    data = ["sample.data=jsonl", f"sample.data.path={folder / 'items.jsonl'}"]
    policy += ["sample.policy.key_variable=null", "sample.num_candidates=3"]
    evaluated = ["~rms.deberta", "~rms.tulu", "data=jsonl", f"data.path={folder / 'items.jsonl'}"]
    return ["run", "downstream", *data, *policy, *evaluated, f"run.dir={folder}", "eval.bootstrap_samples=50"]


def test_resumed_sampling_repeats_nothing_and_keeps_provenance(tal: Tal, tmp_path: Path) -> None:
    limit, drawn = [8], Counter[Any]()
    with writing(until(limit, drawn, improving_answer)) as (url, asked):
        given = [*words(tmp_path, url), "run.name=drawn", "sample.policy.concurrency=1"]
        failed = tal(*given)
        assert (failed.status, (tmp_path / "drawn" / "candidates.jsonl").exists()) == (2, False)
        limit[0] = 99
        done = tal(*given, "run.resume=auto")
    assert done.status == 0, done.err
    assert (drawn.total(), set(drawn.values())) == (18, {1})
    rows = [json.loads(line) for line in (tmp_path / "drawn" / "candidates.jsonl").read_text().splitlines()]
    assert [row["qualities"] for row in rows] == [[0.0, 0.0, 1.0]] * 6
    assert {row["candidates"][0] for row in rows} == {"(no answer)"}
    sampled = rows[0]["sampled"]
    assert sampled["seeds"] == list(dict.fromkeys(body["seed"] for body in asked))
    assert (sampled["policy"]["name"], sampled["temperature"], sampled["task"]) == ("small", 1.0, "multiple_choice")
    assert {(body["temperature"], body["max_tokens"]) for body in asked} == {(1.0, 512)}
    read = read_candidates(tmp_path / "drawn" / "candidates.jsonl")
    assert [row.question_group for row in read] == [f"day-{i}" for i in range(6)]


def test_question_that_the_policy_refuses_has_blank_candidates(tal: Tal, tmp_path: Path) -> None:
    seeds: dict[str, int] = {}

    def respond(request: Received) -> Answer:
        text = request.body["messages"][-1]["content"]
        refusal: Answer = (400, {"error": {"message": "filtered", "code": "content_filter"}}, {})
        some = "day 2" in text and request.body["seed"] == seeds.setdefault(text, request.body["seed"])
        return refusal if "day 1" in text or some else completion(improving_answer(2, text))

    with answering(respond) as url, pytest.warns(DataWarning, match="1 of 6 questions were refused by the policy"):
        done = tal(*words(tmp_path, f"{url}/v1"), "run.name=refused")
    assert done.status == 0, done.err
    rows = [json.loads(line) for line in (tmp_path / "refused" / "candidates.jsonl").read_text().splitlines()]
    refused = [row["candidates"] == ["(no answer)"] * 3 for row in rows]
    assert refused == ["day 1" in row["prompt"] for row in rows]
    reasons = [row["sampled"]["finish_reasons"].count("refused") for row in rows]
    assert reasons == [3 if "day 1" in row["prompt"] else int("day 2" in row["prompt"]) for row in rows]


def test_downstream_recipe_runs_from_samples_to_r2(tal: Tal, tmp_path: Path) -> None:
    with writing(improving_answer, kind_of) as (url, asked):
        judge = ["rms.long=server", f"rms.long.url={url}", "rms.long.model=judge", "rms.long.key_variable=null"]
        random = [
            "rms.random=classifier",
            f"rms.random.path={write_classifier(tmp_path / 'rm', max_position_embeddings=999)}",
        ]
        given = [*words(tmp_path, url), *judge, *random, "run.name=valid"]
        done = tal(*given)
        assert done.status == 0, done.err
        assert [each["kind"] for each in asked].count("to answer") == 18
        count = len(asked)
        again = tal(*given, "run.resume=auto")
        assert (again.status, len(asked)) == (0, count), again.err
    found = json.loads((tmp_path / "valid" / "validity.json").read_text())
    assert (found["n"], {result["name"] for result in found["results"]}) == (3, {"long", "random", "constant"})
    by_name = {result["name"]: result for result in found["results"]}
    assert by_name["long"]["downstream"] == 1.0  # the longest candidate is the right one
    assert by_name["long"]["accuracy"] == pytest.approx(1 / 3)  # and the best response in a third of the items
    assert "Pearson r" in done.out
    assert "n = 3: with so few reward models a correlation says little" in " ".join(done.err.split())
    assert (tmp_path / "valid" / "leaderboard.html").is_file()


def test_downstream_recipe_with_a_failed_reward_model_says_how_to_correlate_the_others(
    tal: Tal, tmp_path: Path
) -> None:
    with writing(improving_answer, kind_of) as (url, _):
        missing = ["rms.missing=classifier", f"rms.missing.path={tmp_path / 'nowhere'}", "rms.flat=constant"]
        done = tal(*words(tmp_path, url), *missing, "run.name=partial")
    assert done.status == 1
    assert f"no r2        a reward model failed; for the others: tal validity {tmp_path / 'partial'}" in done.err
    assert not (tmp_path / "partial" / "validity.json").exists()
