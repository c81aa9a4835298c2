"""`tal data edit`: valid model edits are kept, invalid ones counted by rule, and probes use the resulting file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Tal
from items import make_item
from loopback import until, writing
from reward_models.scripted import serving

from think_as_locals.data.edits import prompt_text
from think_as_locals.data.sources import jsonl

ITEMS = [
    make_item(
        id=f"item-{i}",
        prompt=f"What do people in {country} give on day {i}?",
        responses=(
            f"They give a bowl of rice to the family on day {i}.",
            f"In {country} they give old books to the teacher on day {i}.",
            f"They give flowers to every guest on day {i}.",
        ),
        best=i % 3,
        culture=culture,
        group=f"day-{i}",
    )
    for i, (culture, country) in enumerate([("TH", "Thailand"), ("JP", "Japan")] * 3)
]
GERMAN = {
    "They give a bowl of rice to the family on day": "Der Familie schenken sie eine Schale Reis am Tag",
    "they give old books to the teacher on day": "schenken sie dem Lehrer alte Bücher am Tag",
    "They give flowers to every guest on day": "Sie schenken jedem Gast Blumen am Tag",
    "Thailand": "Thailand",
    "Japan": "Japan",
}
REPLACED_GIFTS = {"a bowl of rice": "a box of chocolates", "old books": "new toys", "flowers": "umbrellas"}


def swap(text: str, table: dict[str, str]) -> str:
    for old, new in table.items():
        text = text.replace(old, new)
    return text


def probe_of(prompt: str) -> str:
    starts = {probe: prompt_text(probe).partition("$")[0] for probe in ("CC", "RC", "CL", "RP")}
    return next(probe for probe, start in starts.items() if prompt.startswith(start))


def shown_in(prompt: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(prompt[prompt.index("\n{") :])
    return values


def edit(prompt: str) -> dict[str, Any]:
    """What an able editor answers."""
    probe, shown = probe_of(prompt), shown_in(prompt)
    responses = shown.get("responses", [])
    if probe == "CC":
        return {"response": swap(shown["response"], REPLACED_GIFTS)}
    if probe == "RC":
        place = f" in {shown['culture']}"
        bare = [text.replace(f"In {shown['culture']} they", "They") for text in responses]
        return {"prompt": shown["prompt"].replace(place, ""), "responses": bare}
    if probe == "CL":
        return {"responses": [swap(text, GERMAN) for text in responses]}
    country, day = shown["prompt"].split()[4], shown["prompt"].split()[-1]
    said = [
        f"{f'{country}: ' if country in text else ''}handed over are {' '.join(text.split()[-8:])}"
        for text in responses
    ]
    return {"prompt": f"On day {day} in {country}, which present is common?".replace("??", "?"), "responses": said}


@contextmanager
def editing(writes: Callable[[int, str], str]) -> Iterator[tuple[list[str], list[dict[str, Any]]]]:
    """The words that name an editor behind a server, and the bodies of the requests that it gets."""
    with writing(writes, probe_of) as (url, asked):
        # A function that raises is retried until the deadline.
        server = ["editor=server", f"editor.url={url}", "editor.model=big", "editor.key_variable=null"]
        yield [*server, "editor.deadline_s=20"], asked


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    jsonl.write(ITEMS, tmp_path / "items.jsonl")
    data = ["data=jsonl", f"data.path={tmp_path / 'items.jsonl'}"]
    return ["data", "edit", *data, "language=de", f"run.dir={tmp_path}", "run.name=edited"]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "edited" / "edits.jsonl").read_text().splitlines()]


def unreliable_editor(number: int, prompt: str) -> str:
    """An able editor, but for: first tries at RC, which are no JSON, and CC of rice, which is always said anew."""
    if probe_of(prompt) == "RC" and number == 0:
        return "I would rather not."
    if probe_of(prompt) == "CC" and "rice" in shown_in(prompt)["response"]:
        return json.dumps({"response": "Nobody there gives anything to anybody at all, whatever the day may be, ever."})
    return f"Sure!\n```json\n{json.dumps(edit(prompt), ensure_ascii=False)}\n```"


def test_valid_edits_keep_provenance_and_rejects_are_counted_by_rule(
    tal: Tal, words: list[str], tmp_path: Path
) -> None:
    with editing(unreliable_editor) as (editor, asked):
        done = tal(*words, *editor, "seed=5", "tries=2", "max_completion_length=99", "--json")
        assert done.status == 0, done.err
        found = json.loads(done.out)["probes"]
        again = tal(*words, *editor, "seed=5", "tries=2", "max_completion_length=99", "run.resume=auto")
    counts = {probe: [part[key] for key in ("n", "completions", "kept", "rejected")] for probe, part in found.items()}
    assert counts == {"CC": [6, 8, 4, 4], "RC": [6, 12, 6, 6], "CL": [6, 6, 6, 0], "RP": [6, 6, 6, 0]}
    assert found["CC"]["broken"] == {"rest_kept": 4}
    assert found["RC"]["broken"] == {"format": 6}
    assert found["CC"]["yield"] == pytest.approx(4 / 6)
    assert {culture: part["n"] for culture, part in found["CC"]["by_culture"].items()} == {"JP": 3, "TH": 3}
    assert (again.status, len(asked)) == (0, 32)
    assert "the other words stay as they were" in again.out
    kept = rows(tmp_path)
    assert Counter(row["probe"] for row in kept) == {"CC": 4, "RC": 6, "CL": 6, "RP": 6}
    assert [row["item"]["id"] for row in kept if row["probe"] == "CL"] == [item.id for item in ITEMS]
    first = next(row for row in kept if row["probe"] == "RC")
    assert first["prompt"] == "What do people give on day 0?"
    assert first["responses"][1] == "They give old books to the teacher on day 0."
    made = first["provenance"]
    assert (made["try"], made["temperature"], made["editor"]["name"]) == (2, 0.7, "big")
    assert made["seed"] in {body["seed"] for body in asked}
    assert {(body["temperature"], body["max_tokens"]) for body in asked} == {(0.7, 99)}
    assert {row.get("language") for row in kept if row["probe"] == "CL"} == {"de"}


def test_edits_pass_validation_and_are_used_by_evaluation_probes(tal: Tal, words: list[str], tmp_path: Path) -> None:
    with editing(lambda _, prompt: json.dumps(edit(prompt))) as (editor, _asked):
        assert tal(*words, *editor).status == 0
    file = tmp_path / "edited" / "edits.jsonl"
    validated = tal("data", "validate", str(file), "--json")
    assert (validated.status, json.loads(validated.out)["rows"]) == (0, 24), validated.out
    without = tmp_path / "without-one.jsonl"
    without.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    with serving() as (url, _):
        judge = ["rms.long=server", f"rms.long.url={url}", "rms.long.model=m", "rms.long.key_variable=null"]
        asked_by = ["rms.long.protocol=pointwise", "rms.long.prompt=rewardbench2_ratings"]
        measured = ["data=jsonl", f"data.path={tmp_path / 'items.jsonl'}", f"eval.probes={without}"]
        done = tal("run", "carb", *measured, *judge, *asked_by, f"run.dir={tmp_path}", "run.name=measured")
    assert done.status == 0, done.err
    found = json.loads((tmp_path / "measured" / "probes" / "long.json").read_text())
    assert [found[probe]["n"] for probe in ("CC", "RC", "CL", "RP")] == [5, 6, 6, 6]
    assert found["CC"]["not_applicable"] == {"the file has no such edit of it": 1}
    assert (found["CL"]["applicable"], list(found["CL"]["by_language"])) == (1.0, ["de"])
    assert "CC" in (tmp_path / "measured" / "leaderboard.html").read_text()


def test_failed_run_resumes_and_overwrites_nothing(tal: Tal, words: list[str], tmp_path: Path) -> None:
    limit, answered = [9], Counter[Any]()
    with editing(until(limit, answered, unreliable_editor)) as (editor, _):
        failed = tal(*words, *editor, "editor.concurrency=1")
        assert (failed.status, (tmp_path / "edited" / "edits.jsonl").exists()) == (2, False)
        assert "exists: choose another run.name" in tal(*words, *editor).err
        limit[0] = 99
        done = tal(*words, *editor, "editor.concurrency=3", "run.resume=auto")
    assert done.status == 0, done.err
    assert set(answered.values()) == {1}
    assert len(rows(tmp_path)) == 22
