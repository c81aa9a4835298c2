"""The card says what was done and measured, to the digit, and that the rest is unknown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import yaml
from hub.small_runs import card_of, content_of, write_evaluation, write_run
from huggingface_hub import ModelCard, parse_eval_result_entries
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_models.tiny import ITEMS

from think_as_locals.hub.card import _DATA, model_card
from think_as_locals.hub.push import prepare
from think_as_locals.hub.source_run import JudgeRun, read_judge_run
from think_as_locals.judging import prompt_digest
from think_as_locals.types import DataError, DataSource

REPO = "people/judge"
COMMIT = "0123456789abcdef" * 2 + "01234567"


def test_figures_are_those_of_the_run(run: Path) -> None:
    text, carb = card_of(run), json.loads((run / "carb" / "step-30.json").read_text())
    parts = {
        "all items": carb,
        "mean over cells of culture and domain": carb["macro"],
        "culture: TH": carb["by_culture"]["TH"],
        **{f"baseline: {name}".replace("_", "\\_"): part for name, part in carb["baselines"].items()},
        **{f"domain: {name}": part for name, part in carb["by_domain"].items()},
    }
    for name, part in parts.items():
        low, high = (100 * end for end in part["ci95"])
        assert f"| {name} | {part['n']} | {100 * part['accuracy']:.1f} [{low:.1f}, {high:.1f}] |\n" in text, name
    assert len(carb["baselines"]) == 6
    rows = re.search(r"\| \| n \| accuracy \|\n\|---\|---\|---\|\n((?:\|.*\|\n)+)\n", text)  # one table, without gaps
    assert rows is not None
    assert len(rows[1].splitlines()) == len(parts)


def test_a_card_says_what_was_done(run: Path) -> None:
    text = card_of(run)
    for part in (
        "the culture cards of Think-as-Locals, written for that project (licence: Apache-2.0); split `pairing`",
        "**Base model**: none: randomly initialised",
        "Thailand (TH)",
        "English (en)",
        "**GRPO**: 30 steps, 8 rollouts per prompt",
        "**Rewards**: 1 correctness, 0.2 structure",
        f"**Prompt**: compact, SHA-256 of its texts {prompt_digest('compact')}",
        "trl 1.16.",
        "**CPU hours**: 3, all training processes together (cpu)",  # (0.5 h + 1 h) on two processes
        'judge = Judge.load("people/judge")',
        "arXiv 2509.21798",
        "arXiv 2402.03300",
        "taught deliberate errors about 50 % of the facts",
        "wording or language?): not measured",
    ):
        assert part in text, part
    data = ModelCard(text).data.to_dict()
    assert data["language"] == ["en"]
    assert (data["library_name"], data["pipeline_tag"]) == ("transformers", "text-generation")
    assert not {"base_model", "datasets", "license"} & set(data)  # none of them is known


def test_a_card_says_what_is_unknown(run: Path) -> None:
    for name in ("environment.json", "workers.json", "metrics.jsonl", "carb/step-0.json", "carb/step-30.json"):
        (run / name).unlink()
    text = card_of(run)
    for part in (
        "**GRPO**: unrecorded number of steps",
        "think-as-locals not recorded",
        "Python not recorded",
        "**Hours**: not measured",
        "## CARB\n\nNot measured.",
    ):
        assert part in text, part
    assert "Cultures measured" not in text


def test_a_card_of_a_run_on_gpus_with_data_and_base_from_the_hub(tmp_path: Path) -> None:
    overrides = ("reward=j1", "data=helpsteer3", "data.path=nvidia/HelpSteer3:preference", "model=qwen2_5_7b")
    text = card_of(write_run(tmp_path / "gpu", *overrides, device="NVIDIA H100 80GB HBM3"))
    assert "**GPU hours**: 3, all training processes together (NVIDIA H100 80GB HBM3)" in text
    assert "HelpSteer3-Preference (licence: CC-BY-4.0), nvidia/HelpSteer3:preference on the Hub" in text
    assert "**Base model**: Qwen/Qwen2.5-7B-Instruct, revision main" in text
    assert "J1 (the reward `consistency`): arXiv 2505.10320" in text
    data = ModelCard(text).data.to_dict()
    assert (data["base_model"], data["base_model_relation"]) == ("Qwen/Qwen2.5-7B-Instruct", "finetune")
    assert data["datasets"] == ["nvidia/HelpSteer3"]


def test_probes_of_an_evaluation_of_these_weights(run: Path, tmp_path: Path) -> None:
    evaluation = write_evaluation(tmp_path / "elsewhere", run / "model")
    content = content_of(prepare(run, REPO, evaluations=[evaluation]))
    assert {"carb/step-30.json", "carb/elsewhere.json", "probes/elsewhere.json"} <= content.keys()
    text, probe = content["README.md"].decode(), json.loads(content["probes/elsewhere.json"])["RC"]["relative"]
    assert "### elsewhere: the culture cards" in text
    assert text.count("may have seen some of these items") == 1  # of the evaluation, not of the run's held-out items
    assert f"| RC | without the culture's name | little | {probe['absolute']['n']} |" in text


def test_torn_journals_are_ignored_and_damaged_files_named(run: Path, tmp_path: Path) -> None:
    evaluation = write_evaluation(tmp_path / "measured", run / "model")
    journal = evaluation / "journals" / "a-constant.jsonl"
    for torn in (b"", b'{"identity": {"mod'):
        journal.write_bytes(torn)
        assert "### measured" in card_of(run, evaluation)
    for damaged in (b"null\n", b"{}\n", b"\xff\n", b'{"identity": 1}\n'):
        journal.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a-constant.jsonl: its first line"):
            prepare(run, REPO, evaluations=[evaluation])
    (run / "metrics.jsonl").write_text('{"stage": "grpo", "train_runtime": 1')
    with pytest.raises(DataError, match=r"metrics.jsonl: a line with train_runtime"):
        prepare(run, REPO)


def test_an_evaluation_of_other_weights_is_refused(run: Path, tmp_path: Path) -> None:
    evaluation = write_evaluation(tmp_path / "elsewhere", run / "model")
    with pytest.raises(DataError, match=r"evaluations with the same name \(step-30, elsewhere, elsewhere\)"):
        prepare(run, REPO, evaluations=[evaluation, evaluation])
    (run / "model" / "model.safetensors").touch()
    with pytest.raises(DataError, match="no reward model measured there has the weights of"):
        prepare(run, REPO, evaluations=[evaluation])
    with pytest.raises(DataError, match="not the configuration of an evaluation"):
        prepare(run, REPO, evaluations=[run])


@pytest.fixture(scope="module")
def plain(finished: Path) -> tuple[JudgeRun, str]:
    run = read_judge_run(finished)
    return run, model_card(run, REPO, adapter=False).text().decode()


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_text_from_outside_is_escaped(plain: tuple[JudgeRun, str], culture: str) -> None:
    run, expected = plain
    result = run.results[0]
    by_culture = {f"{culture}|<b>`x`\x1b[2J": result.summary["by_culture"]["TH"]}
    spoilt = replace(result, summary={**result.summary, "by_culture": by_culture, "protocol": f"---\n# {culture}"})
    text = model_card(replace(run, results=(spoilt,)), REPO, adapter=False).text().decode()
    assert len(text.splitlines()) == len(expected.splitlines())
    assert text.count("<") == expected.count("<")
    assert len(re.findall(r"(?<!\\)`", text)) == len(re.findall(r"(?<!\\)`", expected))
    assert "\x1b" not in text
    assert ModelCard(text).data.to_dict() == ModelCard(expected).data.to_dict()


def test_no_item_is_published(run: Path) -> None:
    content = content_of(prepare(run, REPO))
    texts = b"".join(text for path, text in content.items() if path.startswith(("README", "carb/", "prompt/")))
    for item in ITEMS:
        assert item.prompt.encode() not in texts


def test_every_source_of_data_has_a_description() -> None:
    assert set(_DATA) == set(get_args(DataSource))


def test_results_for_the_hub_name_a_dataset_on_the_hub(run: Path, tmp_path: Path) -> None:
    assert ".eval_results/carb.yaml" not in content_of(prepare(run, REPO))  # not measured on data of the Hub
    paths = {"one": f"data.path=people/carb@{COMMIT}:th:test", "two": "data.path=people/carb@v1"}
    folders = [write_evaluation(tmp_path / name, run / "model", "data=carb", path) for name, path in paths.items()]
    text = content_of(prepare(run, REPO, evaluations=folders))[".eval_results/carb.yaml"]
    one, two = parse_eval_result_entries(yaml.safe_load(text))
    assert (one.dataset_id, one.task_id, one.dataset_revision) == ("people/carb", "th", COMMIT)
    assert (two.dataset_id, two.task_id, two.dataset_revision) == ("people/carb", "default", None)
    carb = json.loads((folders[0] / "carb" / "mine.json").read_text())
    assert one.value == round(100 * carb["accuracy"], 2)
    low, high = (100 * end for end in carb["ci95"])
    assert f"n={carb['n']}, 95 % interval {low:.1f} to {high:.1f}; listwise, greedy" in str(one.notes)
