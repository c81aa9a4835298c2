"""`tal init`: its output runs unchanged, fits the given rows, and never replaces an existing folder."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import QUICK, SMALL, Tal
from data.tables import write
from documents import blocks
from fastapi.testclient import TestClient
from reward_models.tiny import ITEMS

from think_as_locals.config.checks import load_config, load_data_config, load_recipe
from think_as_locals.data import load, read
from think_as_locals.data.sources import jsonl
from think_as_locals.data.sources.columns import guess_columns
from think_as_locals.hub.files import is_pushed_path
from think_as_locals.types import DataError

PAIRS = [
    {"prompt": f"How do people greet the {who}?", "chosen": "With a wai.", "rejected": "With a bow.", "culture": "TH"}
    for who in ("elder", "guest", "child", "monk", "teacher")
]
GENERATED_FILES = ["README.md", "base.yaml", "judge.yaml", "one_cpu.yaml", "one_gpu.yaml", "rewards.py"]
GENERATED_FILES += ["test_rewards.py"]


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:own. 13 items are training items too")
def test_readme_walkthrough_of_tal_init_runs(monkeypatch: pytest.MonkeyPatch, tal: Tal) -> None:
    done = tal("init", "sample")
    assert done.status == 0, done.err
    assert "300 rows = 300 imported (300 items) + 0 in quarantine" in done.out
    assert "cultures: ES 41" in done.out
    assert sorted(path.name for path in Path("sample").iterdir()) == sorted([*GENERATED_FILES, "pairs.csv"])
    english = load_data_config(["data=quickstart_cards", "data.num_responses=2", "data.max_items=300"])
    pairs = [
        {"prompt": item.prompt, "chosen": best, "rejected": other, "culture": item.culture}
        for item in read(english.data, english.seed)
        for best, other in [sorted(item.responses, key=item.responses[item.best].__ne__)]
    ]
    write(Path("my.csv"), pairs)

    (typed,) = (block for block in blocks() if block.text.startswith("tal init mine --from my.csv"))
    small = [word for word in (*SMALL, *QUICK) if not word.startswith(("data.", "eval.max_items=4"))]
    apps: list[Any] = []
    monkeypatch.setattr("uvicorn.run", lambda app, **_: apps.append(app))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    outcomes = {}
    for line in typed.text.splitlines():
        program, name, *words = line.partition(" # ")[0].replace("step-30", "step-2").split()
        if program == "cd":
            monkeypatch.chdir(name)
            continue
        outcomes[name] = tal(name, *words, *(small if name == "run" else []))
        assert (program, outcomes[name].status) == ("tal", 0), f"{line}: {outcomes[name]}"
    assert [*outcomes] == ["init", "data", "run", "compare", "serve"]
    assert re.search(r"warning: own at step 2 was trained on \d+ of these 16 items", outcomes["run"].err)
    row = {"prompt": "Breakfast?", "responses": ["Rice.", "A croissant."], "culture": "JP"}
    answer = TestClient(apps[0], "http://127.0.0.1").post("/judge", json={"items": [row]}).json()
    assert answer["judgements"][0].keys() > {"verdict", "label", "order"}

    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take two seconds
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "test_rewards.py"]
    assert subprocess.run(tests, check=False, capture_output=True).returncode == 0
    assert tal("judge", "runs/first/model", "runs/first/examples.jsonl", "--json").out
    done = tal("push", "runs/first", "--repo", "owner/mine", "--dry-run", "--json")
    assert done.status == 0, done.err
    pushed = [file["path"] for file in json.loads(done.out)["files"]]
    assert "carb/own-step-2.json" in pushed
    assert all(map(is_pushed_path, pushed))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json", ".parquet"])
def test_init_inspects_rows_of_a_file(tmp_path: Path, tal: Tal, suffix: str) -> None:
    write(Path(f"my rows: 'é'{suffix}"), PAIRS)
    done = tal("init", "mine", "--from", f"my rows: 'é'{suffix}")
    assert done.status == 0, done.err
    assert f"é'{suffix}: read as data=rows\n5 rows = 5 imported (5 items) + 0 in quarantine\n" in done.out
    assert "\ncultures: TH 5\nlanguages: en 5\n" in done.out
    assert sorted(path.name for path in Path("mine").iterdir()) == GENERATED_FILES
    readme = Path("mine/README.md").read_text(encoding="utf-8")
    (validate,) = (line for line in readme.splitlines() if "tal data validate" in line)
    assert shlex.split(validate)[-1] == str(tmp_path / f"my rows: 'é'{suffix}")
    base, one_cpu, *others = (
        load_config(f"mine/{each}.yaml", []).data for each in ("base", "one_cpu", "judge", "one_gpu")
    )
    for data in (base, one_cpu, *others):
        assert (data.source, data.path) == ("rows", str(tmp_path / f"my rows: 'é'{suffix}"))
    assert load(base, 0).test == load(one_cpu, 0).test
    assert load_recipe("mine/one_gpu.yaml").run.launch is None  # doctor estimates one process


@pytest.mark.parametrize(
    ("row", "columns", "given"),
    [
        ({"question": "?", "response_A": "a", "response_B": "b", "label": "A>B", "question_id": 7},
         {"prompt": ["question"], "responses": ["response_A", "response_B"], "best": ["label"],
          "group": ["question_id"]}, ""),
        ({"prompt": "?", "response 1": "a", "response 2": "b", "winner": "response 1"},
         {"prompt": ["prompt"], "responses": ["response 1", "response 2"], "best": ["winner"]}, ""),
        ({"instruction": "?", "input": "", "betterAnswer": "a", "worseAnswer": "b", "country": "TH"},
         {"prompt": ["instruction", "input"], "chosen": ["betterAnswer"], "rejected": ["worseAnswer"],
          "culture": ["country"]}, ""),
        ({"conversation_a": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "a"}],
          "conversation_b": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "b"}],
          "winner": "model_a", "model_a": "x", "model_b": "y", "question_id": 7},
         {"responses": ["conversation_a", "conversation_b"], "best": ["winner"]}, ""),
        ({"instruction": "?", " chosen ": "a", "rejected": "b"},
         {"prompt": ["instruction"], "chosen": [" chosen "], "rejected": ["rejected"]}, ""),
        ({"question": "?", "answer_a": "a", "answer_b": "b", "label": "a", "land": "TH"},
         {"prompt": ["question"], "responses": ["answer_a", "answer_b"], "best": ["label"], "culture": ["land"]},
         "{culture: land}"),
        ({"question": "?", "gut": "a", "schlecht": "b", "label": "x", "land": "TH", "topic": "food"},
         {"prompt": ["question"], "chosen": ["gut"], "rejected": ["schlecht"], "culture": ["land"],
          "domain": ["topic"]}, "{chosen: gut, rejected: [schlecht], culture: land, domain: topic}"),
        ({"question": "?", "chosen": 3, "rejected": 4, "one": "a", "two": "b", "winner": "one", "land": "TH"},
         {"prompt": ["question"], "responses": ["one", "two"], "best": ["winner"], "culture": ["land"]},
         "{responses: [one, two], culture: land}"),
    ],
    ids=["JudgeBench", "numbers and spaces", "Alpaca", "MT-Bench", "instructions", "all but one", "the needed ones",
         "responses beside pairs"],
)  # fmt: skip
def test_columns_that_are_not_given_are_guessed_by_their_names(
    tal: Tal, row: dict[str, Any], columns: dict[str, list[str]], given: str
) -> None:
    write(Path("mine.jsonl"), [row])
    words = [f"data.columns={given}"] * bool(given)
    done = tal("init", "mine", "--from", "mine.jsonl", *words)
    assert "1 rows = 1 imported (1 items)" in done.out, done.err
    data = load_recipe("mine/judge.yaml").data
    assert data.columns == columns
    culture = "TH" if "culture" in columns else None
    assert [(item.prompt, item.responses, item.culture) for item in read(data)] == [("?", ("a", "b"), culture)]
    read_as = tal("data", "validate", "mine.jsonl", *words).out.splitlines()[0]
    assert shlex.split(read_as)[2] == "data=rows"
    assert done.out.splitlines()[0].endswith(f": {read_as}")
    assert tal("data", "validate", "mine.jsonl", *shlex.split(read_as)[2:]).out.splitlines()[0] == read_as
    if given:
        return
    assert "1 rows = 1 imported (1 items)" in tal("data", "validate", str(write(Path("mine.csv"), [row]))).out
    with pytest.raises(DataError, match=re.escape(f"The rows look like {read_as.removeprefix('read as ')}, got")):
        read(load_data_config(["data=rows", "data.path=mine.jsonl"]).data)


def test_group_of_an_arena_is_the_one_that_is_given() -> None:
    names = ["question_id", "model_a", "model_b", "winner", "judge", "conversation_a", "conversation_b"]
    assert "group" not in (guess_columns(names) or "group")
    assert 'group: ["judge"]' in (guess_columns(names, {"group": ["judge"]}) or "")


def test_usual_columns_and_letters_come_before_their_places_in_a_file(tal: Tal) -> None:
    row = {"context": "c", "question": "title", "prompt": "?", "prompt_id": 4, "group": "g", "label": "rude"}
    row |= {"answer_b": "b", "answer_a": "a", "preference": "B", "land": "TH"}
    write(Path("mine.jsonl"), [row])
    done = tal("init", "mine", "--from", "mine.jsonl", "data.columns={culture: land}")
    (item,) = read(load_recipe("mine/judge.yaml").data)
    assert (item.prompt, item.responses, item.best, item.group) == ("?", ("a", "b"), 1, "g"), done.err


def test_init_says_that_questions_need_a_group_where_no_row_gives_one(tal: Tal) -> None:
    for name, given in (("with", {"group": "g"}), ("without", {})):
        write(
            Path(f"{name}.jsonl"), [pair | given | {"culture": c} for pair, c in zip(PAIRS, ("TH", "JP"), strict=False)]
        )
        out = tal("init", name, "--from", f"{name}.jsonl").out
        assert ("rows that ask the same about several cultures" in out) == (name == "without")


def test_init_says_which_rows_are_not_imported(tal: Tal) -> None:
    write(Path("mine.jsonl"), [*PAIRS, *(pair | {"culture": "Thialand"} for pair in PAIRS[:2])])
    lost = r"\n  2 rows are not imported, such as \S*mine\.jsonl:6: error: unknown_culture: .*did you mean 'TH'"
    assert re.search(lost, tal("init", "mine", "--from", "mine.jsonl").out)
    labels = [{"prompt": "?", "response_a": "a", "response_b": "b", "preference": each} for each in ("A", "tie", "tie")]
    write(Path("ties.jsonl"), [row | {"prompt": f"{number}?"} for number, row in enumerate(labels)])
    skipped = r"\n  2 rows are not imported, such as \S*ties\.jsonl:2: skipped: tie: "
    assert re.search(skipped, tal("init", "ties", "--from", "ties.jsonl").out)


def test_init_chooses_the_data_source_from_the_columns(tal: Tal) -> None:
    jsonl.write(ITEMS, Path("mine.jsonl"))
    assert tal("init", "mine", "--from", "mine.jsonl").status == 0
    assert load_recipe("mine/judge.yaml").data.source == "jsonl"


def test_file_name_with_interpolation_syntax_is_taken_literally(tmp_path: Path, tal: Tal) -> None:
    name = r"${oc.env:HF_TOKEN} \${seed}\.csv"
    write(Path(name), [{"prompt": f"{i}?", "chosen": "a", "rejected": "b"} for i in "123"])
    assert tal("data", "validate", name).status == 0
    assert tal("init", "mine", "--from", name).status == 0
    assert load_recipe("mine/judge.yaml").data.path == str(tmp_path / name)


def test_init_writes_the_names_of_columns_and_labels_into_the_recipe(tal: Tal) -> None:
    write(Path("my.csv"), [{"ask": f"{i}?", "one": "yes", "two": "no", "label": 1 + i % 2} for i in range(4)])
    columns = ["data.columns={prompt: ask, responses: [one, two], best: label}", "data.labels={1: a, 2: b}"]
    done = tal("init", "mine", "--from", "my.csv", *columns)
    assert done.status == 0, done.err
    data = load_recipe("mine/judge.yaml")
    assert [item.best for item in read(data.data, 0)] == [0, 1, 0, 1]
    assert load_recipe("mine/one_gpu.yaml").data.columns == data.data.columns == data.eval.sets["own"].data.columns
    assert (
        "data.seed=1: expected data.columns or data.labels" in tal("init", "b", "--from", "my.csv", "data.seed=1").err
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a": "b"}, "no known data set has the columns a."),
        *(
            (dict.fromkeys(names.split(), "x"), "Say which are what: 'data.columns={prompt: NAME, ")
            for names in ("Question answer_1 answer_2", "asked better worse", "question better label")
        ),
        ({"prompt": " ", "chosen": "a", "rejected": "b"}, "no row can be imported"),
    ],
)
def test_init_rejects_unusable_rows_and_creates_nothing(
    tmp_path: Path, tal: Tal, row: dict[str, str], message: str
) -> None:
    Path("my.jsonl").write_text(json.dumps(row) + "\n")
    done = tal("init", "mine", "--from", "my.jsonl")
    assert (done.status, message in done.err) == (2, True), done.err
    assert [path.name for path in tmp_path.iterdir()] == ["my.jsonl"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["there"], "there already exists"),
        (["new", "--from", "no.csv"], "no.csv: cannot be read"),
        (["new", "--from", "two\nlines.csv"], "its name has unprintable characters, which a recipe cannot hold"),
    ],
)
def test_failed_init_leaves_existing_files_untouched(tmp_path: Path, tal: Tal, words: list[str], message: str) -> None:
    Path("there").mkdir()
    done = tal("init", *words)
    assert (done.status, message in done.err) == (2, True), done.err
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
