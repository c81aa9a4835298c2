"""The command line: missing extras, invalid arguments, `tal judge` on small models, unwritable folders."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import ROOT, Tal
from extras import run_with
from items import make_item
from peft import LoraConfig, get_peft_model
from reward_models.tiny import ITEMS, write_classifier, write_language_model
from rich.table import Table
from rich.text import Text
from transformers import AutoModelForCausalLM

from think_as_locals import Item, Judge, ScalarRM, shuffle_responses
from think_as_locals.cli import main
from think_as_locals.config.checks import load_recipe
from think_as_locals.data.sources import jsonl
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.runtime.output import print_error, print_result, set_output
from think_as_locals.runtime.terminal import progress_console

ONE_ITEM = ["--prompt", "How do people greet?", "--response", "With a bow.", "--response", "With two kisses."]


def without_extras(*words: str) -> subprocess.CompletedProcess[str]:
    return run_with((), "from think_as_locals.cli import main; main()", *words, folder=ROOT)


@pytest.mark.parametrize(
    "words",
    [
        ("judge", "runs/NAME/model", "--prompt", "?", "--response", "a", "--response", "b"),
        ("compare", "runs/a", "runs/b"),
        ("push", "runs/NAME", "--repo", "OWNER/NAME", "--dry-run"),
        ("run", "-m", "recipes/quickstart.yaml", "seed=1,2"),
    ],
)
def test_missing_train_extra_exits_2_with_install_command(words: tuple[str, ...]) -> None:
    done = without_extras(*words)
    assert done.returncode == 2
    assert "pip install 'think-as-locals[train]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_runs_without_extras_and_lists_missing_packages() -> None:
    done = without_extras("doctor", "recipes/quickstart.yaml")
    assert done.returncode == 1, done.stderr
    (line,) = re.findall("packages accelerate, .*? torch, .*?\\[train\\]", " ".join(done.stdout.split()))
    assert line.endswith("wandb: not installed; pip install 'think-as-locals[train]")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "COMMAND"),
        (["--version"], f"think-as-locals {version('think-as-locals')}\n"),
        (["run"], "required: recipe\n"),
        (["run", "quikstart"], "no such file; did you mean 'quickstart'?"),
        (["launch", "nofile.yaml"], "nofile.yaml: no such file; those that come with the package: ablations, "),
        (["launch", "quickstart", "--config_file=gpu8_zero4"], "no launch file 'gpu8_zero4'; did you mean 'gpu8_zero"),
        (["launch", "quickstart", "--config_file", "gpu8_zero4"], "no launch file 'gpu8_zero4'; did you mean 'gpu8_z"),
        (["run", "-m", "quickstart", "seed=1,2", "--print-config"], "--print-config: not allowed with argument -m"),
        (
            ["run", "downstream", "sample.policy=model", "sample.policy.path=./no"],
            "  - sample.policy.path: ./no: neither a directory nor a Hub id (owner/name)\n",
        ),
        (
            ["run", "quickstart", "--dry", "--no-such"],
            "arguments: --no-such; settings are key=value, without dashes: seed=1",
        ),
        (["compare", "a", "b", "seed=3"], "unrecognized arguments: seed=3"),
        (["data", "build", "data=jsonl", "data.path=items.jsonl", "out="], "tal: give one out=FILE.jsonl, the file to"),
        (["validity", "runs/GONE"], "no such file; expected the folder of an evaluation, or rows of results"),
        (["compare", "runs/GONE", "b"], "no such file; expected the folder of a run, or a carb/NAME.parquet"),
        (["judge", "no-such-model"], "give a file of items, or --prompt TEXT with --response TEXT"),
        (["judge", "no-such-model", "items.jsonl", *ONE_ITEM], "give a file of items, or --prompt TEXT with --resp"),
        (["judge", "no-such-model", *ONE_ITEM, "items.jsonl"], "give a file of items, or --prompt TEXT with --resp"),
        (["judge", "no-such-model", *ONE_ITEM, "data.columns={prompt: p}"], "give a file of items, or --prompt TEXT"),
        (["judge", "no-such-model", "--json", "no-such-items.jsonl"], "no-such-items.jsonl: cannot be read"),
        (["judge", "no-such-model", "items.jsonl", "--limit", "-1"], "--limit: expected an integer of at least 1, got"),
        (["judge", "no-such-model", *ONE_ITEM, "--max-tokens", "0"], "--max-tokens: expected an integer of at least 1"),
        (["judge", "no-such-model", *ONE_ITEM[:4]], "expected 2 to 8 responses, got 1"),
        (["judge", "no-such-model", *ONE_ITEM[2:]], "prompt: Field required"),
        (["judge", "no-such-model", "no-such-items.jsonl"], "no-such-items.jsonl"),
        (["judge", "no-such-model", "/dev/null"], "null: no rows: it is empty"),
        (["judge", "runs/GONE/model", *ONE_ITEM], "neither a directory"),
    ],
)
def test_invalid_command_line_names_the_expected_input(words: list[str], expected: str, tal: Tal) -> None:
    done = tal(*words)
    assert done.status == (0 if not words or words == ["--version"] else 2)
    assert expected in done.out + done.err


# --- tal judge ---


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A judge that writes nonsense, and little of it."""
    folder = tmp_path_factory.mktemp("judge")
    path = write_language_model(folder, 0, max_position_embeddings=4096)
    (folder / "tal_judge.json").write_text(json.dumps({"max_completion_length": 8, "dtype": "float32"}))
    return path


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_classifier(tmp_path_factory.mktemp("classifier"))


def records(tal: Tal, *words: str) -> list[dict[str, Any]]:
    done = tal("judge", *words, "--json")
    found = [json.loads(line) for line in done.out.splitlines()]
    failures = sum(record["verdict"] is None for record in found)
    assert done.status == (1 if failures else 0), done.err
    assert (f"{failures} of {len(found)} judgements have no verdict: the model did not follow" in done.err) == (
        failures > 0
    )
    return found


def test_judging_a_file_matches_the_judge_api(tal: Tal, judge: str, tmp_path: Path) -> None:
    jsonl.write(ITEMS, tmp_path / "items.jsonl")
    found = records(tal, judge, str(tmp_path / "items.jsonl"))
    assert [record["id"] for record in found] == [item.id for item in ITEMS]
    for record, item, judgement in zip(found, ITEMS, Judge.load(judge).judge(ITEMS), strict=True):
        assert record["completion"] == judgement.completion
        assert record["issues"] == list(judgement.issues)
        assert [item.responses[i] for i in record["order"]] == list(shuffle_responses(item).responses)


def test_judge_prints_a_single_item_as_readable_text(tal: Tal, judge: str) -> None:
    output = tal("judge", judge, *ONE_ITEM, "--culture", "TH", "--language", "en", columns=60).out
    lines = [line.strip() for line in output.splitlines()]
    assert lines[1:3] == ["How do people greet?", "Thailand"]
    assert "No verdict" in lines
    assert any(line.startswith("- finished: the completion has to end by itself") for line in lines)


def test_judge_with_classifier_reports_scores(tal: Tal, classifier: str, tmp_path: Path) -> None:
    jsonl.write(ITEMS, tmp_path / "items.jsonl")
    found = records(tal, classifier, str(tmp_path / "items.jsonl"))
    expected = ScalarRM.load(classifier).score(ITEMS)
    assert [record["scores"] for record in found] == [pytest.approx(scores, abs=1e-5) for scores in expected]
    assert [record["verdict"] for record in found] == [scores.index(max(scores)) for scores in expected]
    assert "Highest score: your response " in tal("judge", classifier, *ONE_ITEM).out
    refused = f"tal: --backend vllm: {classifier} is a scalar reward model, which only transformers loads\n"
    assert tal("judge", classifier, *ONE_ITEM, "--backend", "vllm") == (2, "", refused)


def test_lora_adapter_judges_but_neither_in_vllm_nor_as_the_start_of_a_training(
    tal: Tal, judge: str, tmp_path: Path
) -> None:
    lora = LoraConfig(target_modules="all-linear", init_lora_weights=False)
    torch.manual_seed(0)
    adapter = tmp_path / "adapter"
    get_peft_model(AutoModelForCausalLM.from_pretrained(judge), lora).save_pretrained(adapter)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "tal_judge.json"):
        shutil.copy(Path(judge) / name, adapter)
    jsonl.write(ITEMS, tmp_path / "items.jsonl")
    adapted, base = (
        [record["completion"] for record in records(tal, path, str(tmp_path / "items.jsonl"))]
        for path in (str(adapter), judge)
    )
    assert adapted != base
    fault = f"{adapter} is a LoRA adapter alone, expected a whole model, such as"
    assert f"tal: model: {fault}" in tal("judge", str(adapter), *ONE_ITEM, "--backend", "vllm").err
    trained = tal("run", "quickstart", "model.scratch=null", "sft=null", f"model.path={adapter}", f"run.dir={tmp_path}")
    assert f"model.path: {fault}" in trained.err


def test_judge_accepts_rows_with_only_prompt_responses_and_culture(tal: Tal, judge: str, tmp_path: Path) -> None:
    rows = [{"prompt": prompt, "responses": ["A bow.", "A wai."]} for prompt in ("Greeting?", "Farewell?")]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (rows[0], rows[1] | {"culture": "JP"})))
    found = records(tal, judge, str(path), "--culture", "TH")
    assert [record["id"] for record in found] == ["mine.jsonl-1", "mine.jsonl-2"]
    done = tal("judge", judge, str(path))
    assert (done.status, "mine.jsonl:1: culture: Field required" in done.err) == (2, True)
    table = tmp_path / "mine.csv"
    head = "prompt,response_a,response_b,country,domain,group,preference,annotator"
    table.write_text(f"{head}\nGreeting?,A bow.,A wai.,,value,g,,7\nFarewell?,A bow.,A wai.,Japan,value,f,,8\n")
    in_columns = [{**record, "id": ""} for record in records(tal, judge, str(table))]
    odd = tmp_path / "odd.csv"
    odd.write_text("prompt,response_a,response_b,Country\nGreeting?,A bow.,A wai.,JP\n")
    assert "odd.csv:2: culture: Field required; Country: " in tal("judge", judge, str(odd)).err
    cultures = zip(rows, (None, "JP"), strict=True)
    path.write_text("".join(json.dumps(row | {"culture": culture}) + "\n" for row, culture in cultures))
    assert in_columns == [{**record, "id": ""} for record in records(tal, judge, str(path))]


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ('{"prompt": "?", "responses": ["A bow.", "A wai."], "best": "B", "country": "TH"}', "mine.jsonl"),
        ('prompt,responses,culture\n?,"[""A bow."", ""A wai.""]",TH', "mine.csv"),
        ('prompt,responses,winner,culture\n?,"[""A bow."", ""A wai.""]",b,TH', "mine.csv"),
        # With a label they need no culture, and may be conversations.
        ('{"prompt": "?", "response_a": "A bow.", "response_b": "A wai.", "winner": "b", "id": 7}', "mine.jsonl"),
        (json.dumps({"prompt": "?", "responses": [[said("A bow.")], [said("A wai.")]], "label": "B"}), "mine.jsonl"),
    ],
)
def test_judge_reads_lists_of_responses(tal: Tal, judge: str, tmp_path: Path, rows: str, name: str) -> None:
    (tmp_path / name).write_text(rows + "\n")
    (found,) = records(tal, judge, str(tmp_path / name))
    assert sorted(found["order"]) == [0, 1]


def test_judge_reads_a_table_with_other_columns(tal: Tal, judge: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("question,one,two,better,country\nGreeting?,A bow.,A wai.,2,Thailand\n")
    columns = "data.columns={prompt: question, responses: [one, two], best: better}"
    (found,) = records(tal, judge, str(path), columns, "data.labels={1: a, 2: b}")
    assert found["id"] == "rows/mine.csv-2"
    done = tal("judge", judge, str(path))
    assert (done.status, "data.columns={prompt: NAME" in done.err) == (2, True)
    done = tal("judge", judge, str(path), f"{columns[:-1]}, culture: land}}")
    assert (done.status, "culture: no row has a column 'land'" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("head", "overrides"),
    [
        ("prompt,response_a,response_b,response_c,preference", ()),
        ("prompt,response_a,response_b,response_c,better", ()),
        ("question,response_1,response_2,response_3,label", ()),  # guessed by their names
        ("asked,one,two,three,number", ("data.columns={prompt: asked, responses: [one, two, three]}",)),
    ],
)
def test_a_verdict_is_an_index_into_the_callers_responses_whatever_the_label(
    tal: Tal, classifier: str, tmp_path: Path, head: str, overrides: tuple[str, ...]
) -> None:
    path, responses = tmp_path / "mine.csv", ("A bow.", "A wai.", "A kiss.")
    path.write_text(f"{head},culture\nHello?,{','.join(responses)},b,TH\nHello?,{','.join(responses)},tie,TH\n")
    (expected,) = ScalarRM.load(classifier).score([make_item(prompt="Hello?", responses=responses, culture="TH")])
    found = records(tal, classifier, str(path), *overrides)
    assert [record["scores"] for record in found] == [pytest.approx(expected, abs=1e-5)] * 2
    for row, fault in (("A bow.,,A kiss.", "mine.csv:2: "), ("A bow.,A wai.,A bow.", "responses must be distinct")):
        path.write_text(f"{head},culture\nHello?,{row},b,TH\n")
        done = tal("judge", classifier, str(path), *overrides)
        assert (done.status, fault in done.err, done.out) == (2, True, "")


def test_judge_needs_no_label_of_rows_in_the_columns_of_a_known_data_set(
    tal: Tal, classifier: str, tmp_path: Path
) -> None:
    row = {"domain": "code", "language": "python", "context": [{"role": "user", "content": "Hello?"}]}
    rows = [row | {"response1": "A bow.", "response2": "A wai.", "overall_preference": n} for n in (0, 2, None)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))  # the first is a tie
    found = records(tal, classifier, str(path), "data=helpsteer3")
    assert [record["id"] for record in found] == [f"helpsteer3/rows.jsonl-{n}" for n in (1, 2, 3)]
    assert len({record["verdict"] for record in found}) == 1
    path.write_text(json.dumps({"question": "?", **{f"option_{x}": f"The {x}." for x in "abcd"}}) + "\n")
    assert len(records(tal, classifier, str(path), "data=include")) == 1  # its country and subject are optional


def test_culture_and_language_of_the_command_line_apply_to_rows_without_them(
    tal: Tal, judge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, predict = list[tuple[str | None, str]](), Judge.predict

    def noted(self: Judge, items: Sequence[Item]) -> list[ScoredItem]:
        asked.extend((item.culture, item.language) for item in items)
        return predict(self, items)

    monkeypatch.setattr(Judge, "predict", noted)
    rows = [
        {"prompt": "Greeting?", "responses": ["A bow.", "A wai."], "culture": None, "language": None},
        {"prompt": "Farewell?", "responses": ["A bow.", "A wai."], "culture": "JP", "language": "ja"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = "prompt,chosen,rejected,culture,language\nGreeting?,A wai.,A bow.,,\nFarewell?,A wai.,A kiss.,JP,ja\n"
    (tmp_path / "pairs.csv").write_text(pairs)
    for name in ("rows.jsonl", "pairs.csv"):
        asked.clear()
        tal("judge", judge, str(tmp_path / name), "--culture", "TH", "--language", "th")
        assert asked == [("TH", "th"), ("JP", "ja")], name
    done = tal("judge", judge, *ONE_ITEM, "--language", "thaih")
    refused = "tal: --language: got 'thaih', expected an English name or a BCP-47 tag\n"
    assert (done.status, done.err) == (2, refused)


def test_invalid_culture_code_suggests_the_correct_one(tal: Tal, judge: str) -> None:
    assert records(tal, judge, *ONE_ITEM, "--culture", "Thailand") == records(tal, judge, *ONE_ITEM, "--culture", "TH")
    done = tal("judge", judge, *ONE_ITEM, "--culture", "UK")
    assert done.status == 2
    assert re.search("--culture: got 'UK', expected .*; did you mean 'GB'", done.err)


# --- tal leaderboard, tal validity ---


def test_files_go_into_a_folder_of_their_own_that_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tal: Tal
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"name": f"{i}", "accuracy": i / 10, "downstream": i} for i in range(1, 4)]
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert tal("validity", "rows.jsonl").status == 0
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "validity"}
    for command in ("leaderboard", "validity"):
        for out in ("rows.jsonl", "rows.jsonl/below"):
            done = tal(command, "rows.jsonl", "--out", out)
            assert done.status == 2
            assert re.match(rf"tal: {out}: .*: a file is where a folder is needed", done.err)


# --- recipes ---
def test_recipes_can_be_listed_and_shown(tal: Tal) -> None:
    listed = tal("recipes", columns=300).out.splitlines()
    assert [line.split()[0] for line in listed] == sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))
    assert all(len(line.split()) > 8 for line in listed)
    assert tal("recipes", "carb").out == (ROOT / "recipes" / "carb.yaml").read_text()


def test_closed_stdout_pipe_ends_the_command_silently() -> None:
    command = f"{sys.executable} -m think_as_locals recipes quickstart | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout.split("\n")[-2], done.stderr) == ("141", "")


@pytest.mark.parametrize(
    ("words", "level"), [(["-q", "recipes"], "quiet"), (["recipes", "-v"], "verbose"), (["recipes"], "normal")]
)
def test_verbosity_flag_works_before_and_after_the_subcommand(tal: Tal, words: list[str], level: str) -> None:
    assert tal(*words).status == 0
    assert os.environ["TAL_OUTPUT"] == level


def test_progress_goes_to_stderr_unless_quiet_or_not_main_rank(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for level, shown in (("normal", "step 1\n"), ("quiet", ""), ("verbose", "step 1\n")):
        monkeypatch.setenv("TAL_OUTPUT", level)
        progress_console().print("step 1")
        progress_console(is_main=False).print("from another rank")
        assert capfd.readouterr() == ("", shown)


def test_deepspeed_logs_do_not_reach_stdout(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("DeepSpeed")
    handler = logging.StreamHandler(sys.stdout)  # as DeepSpeed adds it when it is imported
    logger.addHandler(handler)
    try:
        for level, shown in (("normal", "gone\n"), ("verbose", "no GPU\ngone\n")):
            monkeypatch.setenv("TAL_OUTPUT", level)
            set_output(None)
            logger.warning("no GPU")
            logger.error("gone")
            assert capfd.readouterr() == ("", shown)
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize(
    "message",
    [
        "`torch.distributed.reduce_op` is deprecated, please use `torch.distributed.ReduceOp` instead",
        "`gradient_checkpointing` is deprecated and will be removed in v6. Use `activation_checkpointing` instead.",
        "`is_gradient_checkpointing` is deprecated and will be removed in v6.",
    ],
)
def test_library_deprecation_warnings_are_shown_only_if_verbose(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    for level, shown in (("normal", 0), ("verbose", 1)):
        monkeypatch.setenv("TAL_OUTPUT", level)
        with warnings.catch_warnings(record=True, action="always") as given:
            set_output(None)
            warnings.warn(message, FutureWarning, stacklevel=1)
        assert len(given) == shown


def test_print_config_outputs_only_the_configuration(tal: Tal) -> None:
    done = tal("run", "quickstart", "seed=3", "--print-config", "run.name=mine")
    assert yaml.safe_load(done.out) == load_recipe("quickstart", ["seed=3", "run.name=mine"]).model_dump()
    assert not done.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["quickstart"],
            [
                *("SFT, 600 steps, then GRPO, 30 steps of 128 completions", "4,288 items, 8 question groups"),
                *("set test        476", "3 of 476 judgements each: before GRPO"),
                "GB for each of 1 (launch/single.yaml)",
            ],
        ),
        (["quickstart", "grpo.max_steps=-1", "grpo.num_train_epochs=2"], ["GRPO, 536 steps", "37 of 476 judgements"]),
        (
            ["scpo_quickstart"],
            [
                *("seeds 0, 1, 2", "7,200 items, 300 question groups, 10 cultures", "2,400 items"),
                *("150, of each country", "each up to 135 steps of 16 pairs", "GB for each of 1"),
            ],
        ),
        (["carb", "data=quickstart_cards", "eval.items=test"], ["constant", "476 items, 8 question groups"]),
    ],
)
def test_dry_run_reads_data_and_creates_no_files(
    tal: Tal, words: list[str], expected: list[str], tmp_path: Path
) -> None:
    done = tal("run", *words, f"run.dir={tmp_path}/runs", "--dry-run", columns=300)
    assert done.status == 0, done.err
    for text in expected:
        assert text in done.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["quickstart", "grpo.per_device_train_batch_size=12"], "(12) must be divisible by num_generations (8)"),
        (["ablations_quickstart"], "ablations_quickstart is a sweep over variants (full, without_gain, "),
        (["carb", "eval.candidates=gone.jsonl"], "gone.jsonl: cannot be read"),
        (["quickstart", "run.name=mine"], "mine exists and is not the folder of a run: choose another run.name"),
    ],
)
def test_dry_run_rejects_whatever_a_real_run_rejects(tal: Tal, words: list[str], expected: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    for more in (["--dry-run"], []):
        done = tal("run", *words, f"run.dir={tmp_path}", *more)
        assert (done.status, expected in done.err) == (2, True), done.err


def test_dry_run_counts_launch_processes_and_lists_missing_resources(tal: Tal) -> None:
    words = ["tal_grpo", "data=quickstart_cards", "model.path=./nowhere", "grpo.per_device_train_batch_size=2"]
    words += ["grpo.gradient_accumulation_steps=1", "grpo.num_generations=16"]  # of 8 processes together
    done = tal("run", *words, "--dry-run", columns=300)
    assert done.status == 0, done.err
    assert "8, as run.launch=gpu8_zero3 says: start it with `tal launch`" in done.out
    assert "steps of 16 completions" in done.out
    assert "only rises" not in done.out
    assert "1 steps of 16 completions, whose learning rate only rises" in tal(
        "run", *words, "grpo.max_steps=1", "grpo.warmup_steps=1", "--dry-run", columns=300
    ).out  # fmt: skip
    assert "lacking here" in done.out
    assert "model.path: ./nowhere: neither a directory nor a Hub id" in done.out
    done = tal("run", *words, "run.launch=null", "--dry-run")
    assert (done.status, "(2) must be divisible by num_generations (16)" in done.err) == (2, True), done.err
    done = tal("run", "scpo_quickstart", "scpo.batch_size=12", "run.launch=gpu8_zero3", "--dry-run")
    refused = "scpo.*: got 12 pairs per optimizer step for 8 processes, expected a multiple of 8"
    assert (done.status, refused in done.err) == (2, True), done.err


def test_control_characters_in_keys_are_escaped_in_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["mine.yaml"])
    recipe = tmp_path / "mine.yaml"
    recipe.write_text('defaults:\n  - /recipes/quickstart\n  - _self_\n"a\\e[2J": 1\n')
    with pytest.raises(SystemExit):
        main(str(recipe))
    message = capsys.readouterr().err
    assert "\x1b" not in message
    assert r"a\u001b[2J: no such key" in message


def test_all_output_escapes_what_a_terminal_would_interpret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAL_OUTPUT", "normal")
    evil, table = "a\x1b[2J\x9b31m\u202e\x7f", Table("[b]")
    table.add_row(evil)
    table.add_row(Text(evil))
    print_result(table, evil, json.dumps({evil: 1}, ensure_ascii=False))
    print_error(evil)
    progress_console().print(evil)
    out, err = capsys.readouterr()
    assert not set("\x1b\x9b\u202e\x7f") & set(out + err)
    assert r"a\u001b[2J\u009b31m\u202e\u007f" in err.splitlines()[1]
    assert "[b]" in out  # no markup
    assert json.loads(out.splitlines()[-1]) == {evil: 1}
