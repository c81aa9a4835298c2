"""A complete evaluation, from command to tables: a trained judge, a random classifier and a constant."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from conftest import Tal, command, launch
from data.tables import write
from reward_models.tiny import write_classifier
from warm import processes_in

from think_as_locals import evaluate
from think_as_locals.config.checks import load_config

pytestmark = pytest.mark.slow

ROWS = [
    {
        "id": f"row-{i}",
        "prompt": f"What do people in {country} give as a present?",
        "culture": code,
        "language": "en",
        "candidates": [f"A gift of {thing} number {j}." for j, thing in enumerate(("tea", "salt", "cake") * 3)],
        "qualities": [float((i + j) % 4) for j in range(9)],
    }
    for i, (code, country) in enumerate((("TH", "Thailand"), ("JP", "Japan"), ("EG", "Egypt")))
]


@pytest.fixture(scope="module")
def words(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("evaluations")
    rows = folder / "candidates.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return [
        *("run", "recipes/carb.yaml", f"run.dir={folder}", "run.name=three", "data=quickstart_cards"),
        *("data.groups=[idiom_heavy_rain,gift_taboo]", "data.sets_per_group=12", "data.test_share=0.25"),
        *("data.languages=[en]", "data.split=pairing", "eval.items=test", "eval.bootstrap_samples=200"),
        *("eval.max_items=16", "eval.probes=true", f"eval.candidates={rows}"),
        *("rms.mine=judge", f"rms.mine.path={small_run / 'model'}", "rms.mine.orders=4", "rms.mine.chunk_size=32"),
        *("rms.random=classifier", f"rms.random.path={write_classifier(folder / 'classifier')}"),
    ]


@pytest.fixture(scope="module")
def evaluation(words: list[str], warm_python: str) -> Path:
    done = launch(command("tal", warm_python), *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(words[2].removeprefix("run.dir=")) / "three"


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def label_log_probs(run: Path) -> list[dict[str, float]]:
    """Those of each answer of the judge."""
    _, *lines = (run / "journals" / "mine.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["answer"]["label_log_probs"] for line in lines]


def engine_cores(folder: Path) -> set[int]:
    """The vLLM engine cores that run in a folder; what one forks has its name until it starts its own program."""

    def is_core(process: psutil.Process | None) -> bool:
        return process is not None and process.name() == "VLLM::EngineCore"

    found = set()
    for process in processes_in(folder):
        with suppress(psutil.NoSuchProcess):  # it ends while it is asked
            if is_core(process) and not is_core(process.parent()):
                found.add(process.pid)
    return found


def test_vllm_engine_exits_before_the_next_judge_starts(
    words: list[str], small_run: Path, tmp_path: Path, warm_vllm: str
) -> None:
    section = ("=judge", f".path={small_run / 'model'}", ".backend=vllm")
    judges = [f"rms.{name}{value}" for name in ("one", "two") for value in section]
    seen = set[frozenset[int]]()
    with ThreadPoolExecutor(1) as pool:
        # Its output ends with its last process: one that stayed would have it wait until the time is over.
        settings = [*words[:8], *judges, "eval.max_items=4", "run.name=vllm"]
        ended = pool.submit(launch, command("tal", warm_vllm), *settings, cwd=tmp_path)
        while not ended.done():
            seen.add(frozenset(engine_cores(tmp_path)))
            time.sleep(0.1)
    done = ended.result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "leaked" not in done.stderr
    assert sorted(map(len, seen)) == [0, 1, 1]


def test_judge_and_classifier_summaries_match_their_protocols(evaluation: Path) -> None:
    judge, classifier = (read(evaluation / "carb" / f"{name}.json") for name in ("mine", "random"))
    assert (judge["n"], judge["protocol"]) == (16, "listwise, greedy, 4 orders, strict")
    assert sum(part["n"] for part in judge["by_position"].values()) == 4 * 16
    assert {part["n"] for part in judge["by_position"].values()} == {16}  # each response in each slot once
    assert judge["order_consistency"]["n"] == 16
    assert judge["trained_on"] == {"items": 0, "n": 16}
    assert classifier["trained_on"] is None
    rows = pq.read_table(evaluation / "carb" / "random.parquet").to_pylist()
    assert len({score for row in rows for score in row["scores"]}) > 16


def test_judge_evaluated_on_its_training_items_is_marked(words: list[str], tmp_path: Path, tal: Tal) -> None:
    mine = [word for word in words if word.startswith(("run", "recipes", "data", "rms.mine", "eval.bootstrap"))]
    done = tal(*mine, f"run.dir={tmp_path}", "run.name=seen", "eval.items=all", "eval.max_items=64")
    assert done.status == 0, done.err
    assert not any(label_log_probs(tmp_path / "seen"))  # which only scores need
    counted = read(tmp_path / "seen" / "carb" / "mine.json")["trained_on"]
    assert 0 < counted["items"] < counted["n"] == 64
    note = f"trained on {counted['items']} of these 64 items"
    assert f"warning: mine was {note}" in done.err
    assert "mine † ●" in done.out  # the leaderboard
    assert f"Warning: mine was {note}" in (tmp_path / "seen" / "leaderboard.md").read_text()
    compared = tal("compare", *[str(tmp_path / "seen" / "carb" / f"{name}.parquet") for name in ("constant", "mine")])
    assert f"B was {note}" in " ".join(compared.out.split())
    assert "A was" not in compared.out
    assert {"A", "B †"} <= {heading.strip() for heading in compared.out.replace("┃", "\n").splitlines()}


def test_probes_and_selections_are_written(evaluation: Path) -> None:
    probes = {name: read(evaluation / "probes" / f"{name}.json") for name in ("mine", "random", "constant")}
    assert all(probes["constant"][name]["relative"]["absolute"]["mean"] == 0 for name in ("CC", "RC", "RP"))
    assert probes["random"]["RC"]["relative"]["absolute"]["mean"] > 0
    assert probes["random"]["CC"]["n"] > 0
    assert any(label_log_probs(evaluation))
    selected = read(evaluation / "selections" / "random.json")
    assert selected["oracle"]["mean"] >= selected["selected"]["mean"]
    lines = (evaluation / "selections" / "mine.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [row["id"] for row in ROWS]


def test_probe_edits_from_file_are_used_and_missing_ones_counted(tal: Tal, tmp_path: Path) -> None:
    words = ["data=quickstart_cards", "data.groups=[gift_taboo]", "data.languages=[en]", "data.sets_per_group=1"]
    items = evaluate.load_data(load_config("recipes/carb.yaml", words)).items  # type: ignore[arg-type]
    rows = [{"item": items[0].id, "probe": "RP", "prompt": f"So: {items[0].prompt}"}]
    rows += [{"item": {**asdict(items[0]), "id": "own-1"}, "probe": "RC", "prompt": "Without a place?"}]
    file = write(tmp_path / "edits.jsonl", rows)
    run = ["run", "recipes/carb.yaml", *words, f"run.dir={tmp_path}", "run.name=edited", "eval.bootstrap_samples=20"]
    done = tal(*run, f"eval.probes={file}")
    assert done.status == 0, done.err
    found = read(tmp_path / "edited" / "probes" / "constant.json")
    assert (found["RP"]["n"], found["RP"]["applicable"]) == (1, pytest.approx(1 / len(items)))
    assert found["RP"]["not_applicable"] == {"the file has no such edit of it": len(items) - 1}
    printed = " ".join(done.err.split())
    assert "constant: CC applies to 0.0 % of" in printed
    assert (found["RC"]["n"], found["RC"]["applicable"], found["RC"]["of_other_items"]) == (1, 0, 1)
    assert "its figures include edits of items that are not evaluated (1)" in printed
    write(file, [*rows, {"item": "nowhere", "probe": "RC", "prompt": "x"}])
    failed = tal(*run, f"eval.probes={file}", "run.name=other")
    assert f"{file.name}:3: item 'nowhere' is not among the {len(items)} items" in " ".join(failed.err.split())
    assert not (tmp_path / "other").exists()


def test_resumed_evaluation_rebuilds_results_from_the_journal(evaluation: Path, words: list[str], tal: Tal) -> None:
    journal, carb = evaluation / "journals" / "mine.jsonl", evaluation / "carb" / "mine.json"
    answered, before = journal.read_bytes(), carb.read_bytes()
    carb.unlink()
    done = tal(*words, "run.resume=auto")
    assert done.status == 0, done.err
    assert carb.read_bytes() == before
    assert journal.read_bytes() == answered


@pytest.mark.parametrize("words", [["demonstrate", "teacher.path=x"], ["run", "carb", "rms.mine=constant"]])
def test_what_does_not_train_rejects_multiple_processes(
    tal: Tal, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    done = tal(*words)
    assert (done.status, "runs in one process, got 2: start it with `tal run`" in done.err) == (2, True)
