"""`tal demonstrate`: correct teacher completions are kept with their provenance and requested only once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Tal
from items import RUBRIC, day_items
from loopback import until, writing
from reward_models.scripted import shown_in
from reward_models.tiny import odd_tokenizer, write_model
from transformers import Qwen3ForCausalLM

from think_as_locals.config.checks import load_recipe
from think_as_locals.data import load
from think_as_locals.data.load import check_leaks
from think_as_locals.data.sources import jsonl
from think_as_locals.demonstrate import read_demonstrations
from think_as_locals.judging import RULES, write
from think_as_locals.judging.formats import prompt_format
from think_as_locals.judging.prompt import hint
from think_as_locals.run import load_data
from think_as_locals.types import LABELS, DataError, Item

ITEMS = day_items(8, "They rest on day {}.", "They work for long hours on day {}.", "They dance on {}.")
BEST = {item.prompt: item.responses[item.best] for item in ITEMS}
HINT_PREFIX = hint("?").partition("?")[0]


def presented_in(prompt: str) -> list[str]:
    return shown_in([{"role": "user", "content": prompt}])


def right(presented: Sequence[str]) -> int:
    return next(place for place, text in enumerate(presented) if text in BEST.values())


@contextmanager
def teacher_server(writes: Callable[[int, str], str]) -> Iterator[tuple[list[str], list[dict[str, Any]]]]:
    """The words that name a teacher behind a server, and the bodies of the requests that it gets."""
    with writing(writes) as (url, asked):
        yield ["teacher=server", f"teacher.url={url}", "teacher.model=big", "teacher.key_variable=null"], asked


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    jsonl.write(ITEMS, tmp_path / "items.jsonl")
    data = ["data=jsonl", f"data.path={tmp_path / 'items.jsonl'}", "items=all"]
    return ["demonstrate", *data, f"run.dir={tmp_path}", "run.name=shown", "tries=3"]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "shown" / "demonstrations.jsonl").read_text().splitlines()]


def verdict(place: int) -> str:
    return write(RUBRIC, "Weighed.", place)


def right_on_a_later_try(number: int, prompt: str) -> str:
    """Breaks the grammar, then is wrong, then right; about two items it is right at once, about one never."""
    presented = presented_in(prompt)
    text = presented[right(presented)]
    if text in (BEST[ITEMS[0].prompt], BEST[ITEMS[1].prompt]) or (number == 2 and text != BEST[ITEMS[7].prompt]):
        return verdict(right(presented))
    return "I cannot say." if number == 0 else verdict((right(presented) + 1) % 3)


def test_correct_completions_keep_provenance_with_yield_per_culture(tal: Tal, words: list[str], tmp_path: Path) -> None:
    with teacher_server(right_on_a_later_try) as (teacher, asked):
        done = tal(*words, *teacher, "seed=5", "teacher.max_completion_length=99", "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert (found["n"], found["yield"]) == (8, 7 / 8)
    assert {culture: part["yield"] for culture, part in found["by_culture"].items()} == {"JP": 0.75, "TH": 1.0}
    counts = {key: found[key] for key in ("completions", "right", "wrong", "out_of_format", "too_long", "hinted")}
    assert counts == {"completions": 20, "right": 7, "wrong": 7, "out_of_format": 6, "too_long": 0, "hinted": 0}
    assert found["broken"]["verdict_once"] == 6
    kept = rows(tmp_path)
    assert [row["item"]["id"] for row in kept] == [f"item-{i}" for i in range(7)]
    assert [row["try"] for row in kept] == [1, 1, *[3] * 5]
    seeds = {body["seed"] for body in asked}
    assert (len(seeds), {row["seed"] for row in kept} <= seeds) == (3, True)
    assert {(body["temperature"], body["max_tokens"]) for body in asked} == {(1.0, 99)}
    assert {(row["teacher"], row["hint"], row["temperature"]) for row in kept} == {("big", False, 1.0)}
    assert kept[0]["settings"]["model"]["name"] == "big"
    assert {"prompt": "listwise", "seed": 5}.items() <= kept[0]["settings"].items()
    # No teacher is told the answer, and what it wrote is read back as it saw it.
    assert not any(HINT_PREFIX in body["messages"][-1]["content"] for body in asked)
    read = read_demonstrations(str(tmp_path / "shown" / "demonstrations.jsonl"), prompt_format("compact"))
    assert [each.item for each in read] == ITEMS[:7]  # whose verdict is checked


def test_item_with_reserved_tag_in_teacher_tokenizer_is_rejected(tal: Tal, words: list[str], tmp_path: Path) -> None:
    path = write_model(tmp_path / "teacher", Qwen3ForCausalLM, 0, odd_tokenizer())
    jsonl.write([replace(ITEMS[0], prompt="So ¤verdict€A")], tmp_path / "odd.jsonl")
    done = tal(*words, f"data.path={tmp_path / 'odd.jsonl'}", f"teacher.path={path}")
    assert (done.status, "reads the reserved tag '<verdict>A' in 'So ¤verdict€A'" in done.err) == (2, True), done.err


def test_resume_after_failure_repeats_no_request(tal: Tal, words: list[str], tmp_path: Path) -> None:
    limit, answered = [11], Counter[Any]()
    journals = tmp_path / "shown" / "journals"
    with teacher_server(until(limit, answered, right_on_a_later_try)) as (teacher, _):
        failed = tal(*words, *teacher, "teacher.concurrency=1")
        assert (failed.status, (tmp_path / "shown" / "demonstrations.jsonl").exists()) == (2, False)
        assert sum(len(path.read_text().splitlines()) - 1 for path in journals.iterdir()) == 11
        assert "exists: choose another run.name" in tal(*words, *teacher).err
        limit[0] = 99
        again = tal(*words, *teacher, "teacher.concurrency=3", "run.resume=auto", "--json")
        assert (again.status, json.loads(again.out)["completions"]) == (0, 20), again.err
        assert (answered.total(), set(answered.values())) == (20, {1})
        before = (tmp_path / "shown" / "demonstrations.jsonl").read_bytes()
        done = tal(*words, *teacher, "run.resume=auto")
        assert (done.status, answered.total()) == (0, 20)
    assert (tmp_path / "shown" / "demonstrations.jsonl").read_bytes() == before
    assert len(rows(tmp_path)) == 7


def test_both_orders_drops_position_dependent_verdicts(tal: Tal, words: list[str], tmp_path: Path) -> None:
    def by_place(number: int, prompt: str) -> str:
        presented = presented_in(prompt)
        return verdict(0 if BEST[ITEMS[3].prompt] in presented else right(presented))

    with teacher_server(by_place) as (teacher, _):
        done = tal(*words, *teacher, "both_orders=true")
    assert done.status == 0, done.err
    kept = rows(tmp_path)
    assert Counter(row["item"]["id"] for row in kept) == {item.id: 2 for item in ITEMS if item != ITEMS[3]}
    for one, other in zip(kept[::2], kept[1::2], strict=True):
        assert one["order"] == other["order"][::-1]
    assert "87.5 [" in done.out


def test_hint_is_given_only_for_unsolved_items_and_recorded(tal: Tal, words: list[str], tmp_path: Path) -> None:
    def obeys(number: int, prompt: str) -> str:
        presented = presented_in(prompt)
        if HINT_PREFIX in prompt:
            return verdict(LABELS.index(prompt.rpartition("response ")[2][0]))
        return verdict(right(presented)) if presented[right(presented)] == BEST[ITEMS[2].prompt] else "No."

    with teacher_server(obeys) as (teacher, asked):
        done = tal(*words, *teacher, "tries=1", "hint=true")
    assert done.status == 0, done.err
    kept = rows(tmp_path)
    assert [row["hint"] for row in kept] == [i != 2 for i in range(8)]
    assert sum(HINT_PREFIX in body["messages"][-1]["content"] for body in asked) == 7
    assert len({row["seed"] for row in kept}) == 2


def test_no_correct_completion_writes_no_file_and_names_broken_rule(tal: Tal, words: list[str], tmp_path: Path) -> None:
    with teacher_server(lambda *_: "I cannot say.") as (teacher, _):
        done = tal(*words, *teacher)
    assert (done.status, (tmp_path / "shown" / "demonstrations.jsonl").exists()) == (2, False)
    assert "no completion about 8 items was right (broken most: there has to be one <rubric>" in done.err
    assert "start a new run with more tries" in done.err


ROW = {"item": jsonl.fields(ITEMS[1]), "order": [2, 1, 0], "completion": verdict(1)}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"order": [0, 1]}, "rows.jsonl:1: order: expected each index of 3 responses once"),
        ({"completion": " "}, "rows.jsonl:1: completion: must not be blank"),
        ({"completion": "B"}, f"rows.jsonl:1: the completion breaks .*{RULES['rubric_once']}"),
        ({"completion": "B", "settings": {"prompt": "rm_r1"}}, "rows.jsonl:1: .*, or choose the prompt rm_r1"),
        ({"completion": verdict(0)}, "rows.jsonl:1: the completion chooses A, but B is the best: leave it out"),
        ({"item": {"id": "x"}}, "rows.jsonl:1: .*best: Field required"),
        ({"item": None}, "rows.jsonl:1: item: Field required"),
    ],
)
def test_invalid_demonstration_row_is_rejected(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**ROW, **row}) + "\n")
    with pytest.raises(DataError, match=message):
        read_demonstrations(str(path), prompt_format("compact"))
    path.write_text("\n")
    with pytest.raises(DataError, match=r"rows\.jsonl"):
        read_demonstrations(str(path), prompt_format("compact"))


def test_demonstrations_of_test_items_are_rejected(tmp_path: Path) -> None:
    groups = ["data.groups=[idiom_heavy_rain,gift_taboo]", "data.sets_per_group=12"]
    splits = load(load_recipe("quickstart", groups).data)
    for side in ("train", "test"):
        item: Item = getattr(splits, side)[0]
        row = {"item": jsonl.fields(item), "order": [*range(4)], "completion": verdict(item.best)}
        (tmp_path / side).write_text(json.dumps(row) + "\n")
        config = load_recipe("quickstart", [*groups, f"sft.data={tmp_path / side}"])
        data = load_data(config)
        if side == "train":
            check_leaks(config, data)
            continue
        with pytest.raises(DataError, match=f"test '{item.id}' is training item '{item.id}' by id"):
            check_leaks(config, data)
