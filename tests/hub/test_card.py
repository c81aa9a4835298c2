"""The card says what was done and measured, to the digit, and of the rest that it is not known."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hub.small_runs import write_evaluation, write_run
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st
from models.tiny import ITEMS

from think_as_locals.hub.card import _DATA, card
from think_as_locals.hub.push import prepare
from think_as_locals.hub.trained import read_run
from think_as_locals.judging import prompt_digest
from think_as_locals.types import DataError, DataSource


def card_of(run: Path, *evaluations: Path) -> str:
    files = {file.path: file.text().decode() for file in prepare(run, "people/judge", evaluations=evaluations).files}
    return files["README.md"]


def test_figures_are_those_of_the_measurement(run: Path) -> None:
    text = card_of(run)
    carb = json.loads((run / "carb" / "step-30.json").read_text())
    parts = {
        "all items": carb,
        "mean over cells of culture and domain": carb["macro"],
        "culture: TH": carb["by_culture"]["TH"],
    }
    parts |= {f"baseline: {name}".replace("_", "\\_"): part for name, part in carb["baselines"].items()}
    parts |= {f"domain: {name}": part for name, part in carb["by_domain"].items()}
    for name, part in parts.items():
        low, high = (100 * end for end in part["ci95"])
        assert f"| {name} | {part['n']} | {100 * part['accuracy']:.1f} [{low:.1f}, {high:.1f}] |\n" in text, name
    assert len(carb["baselines"]) == 6
    rows = re.search(r"\| \| n \| accuracy \|\n\|---\|---\|---\|\n((?:\|.*\|\n)+)\n", text)  # one table, without gaps
    assert rows is not None
    assert len(rows[1].splitlines()) == len(parts)


def test_the_hub_reads_its_metadata(run: Path) -> None:
    data = ModelCard(card_of(run)).data.to_dict()
    assert data["language"] == ["en"]
    assert (data["library_name"], data["pipeline_tag"]) == ("transformers", "text-generation")
    assert not {"base_model", "datasets", "license"} & set(data)  # none of them is known


def test_what_was_done_is_told(run: Path) -> None:
    text = card_of(run)
    for told in (
        "the culture cards of Think-as-Locals, written for that project (licence: Apache-2.0); split `pairing`",
        "**Base model**: none: made from nothing",
        "Thailand (TH)",
        "English (en)",
        "**GRPO**: 30 steps, 8 rollouts a prompt",
        "**Rewards**: 1 correctness, 0.2 structure",
        f"**Prompt**: compact, SHA-256 of its texts {prompt_digest('compact')}",
        "trl 1.16.",
        "**CPU hours**: 3, all training processes together (cpu)",  # (0.5 h + 1 h) on two processes
        'judge = Judge.load("people/judge")',
        "arXiv 2509.21798",
        "arXiv 2402.03300",
        "taught wrong beliefs about 50 % of the facts",
        "wording or language?): not measured",
    ):
        assert told in text, told


def test_what_is_not_known_is_not_told(run: Path) -> None:
    for name in ("environment.json", "workers.json", "metrics.jsonl", "carb/step-0.json", "carb/step-30.json"):
        (run / name).unlink()
    text = card_of(run)
    for told in (
        "**GRPO**: not recorded how many steps",
        "think-as-locals not recorded",
        "Python not recorded",
        "**Hours**: not measured",
        "## CARB\n\nNot measured.",
    ):
        assert told in text, told
    assert "Cultures measured" not in text


def test_gpu_hours_where_there_were_gpus(tmp_path: Path) -> None:
    overrides = ("reward=j1", "data=helpsteer3", "data.path=nvidia/HelpSteer3:preference", "model=qwen2_5_7b")
    text = card_of(write_run(tmp_path / "gpu", *overrides, device="NVIDIA H100 80GB HBM3"))
    assert "**GPU hours**: 3, all training processes together (NVIDIA H100 80GB HBM3)" in text
    assert "HelpSteer3-Preference (licence: CC-BY-4.0), nvidia/HelpSteer3:preference on the Hub" in text
    assert "**Base model**: Qwen/Qwen2.5-7B-Instruct, revision main" in text
    assert "J1 (the reward `consistency`): arXiv 2505.10320" in text
    data = ModelCard(text).data.to_dict()
    assert data["base_model"] == "Qwen/Qwen2.5-7B-Instruct"
    assert data["base_model_relation"] == "finetune"
    assert data["datasets"] == ["nvidia/HelpSteer3"]


def test_probes_of_an_evaluation_of_these_weights(run: Path, tmp_path: Path) -> None:
    evaluation = write_evaluation(tmp_path / "elsewhere", run / "model")
    text = card_of(run, evaluation)
    found = json.loads((evaluation / "probes" / "mine.json").read_text())["RC"]["relative"]
    assert "### elsewhere: the culture cards" in text
    assert (
        text.count("may have met some of these items") == 1
    )  # other items of the same data; not its own held-out ones
    row = f"| RC | without the culture's name | little | {found['absolute']['n']} |"
    assert row in text
    paths = {file.path for file in prepare(run, "people/judge", evaluations=[evaluation]).files}
    assert {"carb/step-30.json", "carb/elsewhere.json", "probes/elsewhere.json"} <= paths


def test_a_journal_that_was_torn_is_nobodys_and_one_that_is_damaged_is_named(run: Path, tmp_path: Path) -> None:
    evaluation = write_evaluation(tmp_path / "measured", run / "model")
    journal = evaluation / "journals" / "a-constant.jsonl"
    for torn in (b"", b'{"identity": {"mod'):
        journal.write_bytes(torn)
        assert "### measured" in card_of(run, evaluation)
    for damaged in (b"null\n", b"{}\n", b"\xff\n", b'{"identity": 1}\n'):
        journal.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a-constant.jsonl: its first line"):
            prepare(run, "people/judge", evaluations=[evaluation])
    (run / "metrics.jsonl").write_text('{"stage": "grpo", "train_runtime": 1')
    with pytest.raises(DataError, match=r"metrics.jsonl: a line with train_runtime"):
        prepare(run, "people/judge")


def test_an_evaluation_of_other_weights_is_refused(run: Path, tmp_path: Path) -> None:
    evaluation = write_evaluation(tmp_path / "elsewhere", run / "model")
    (run / "model" / "model.safetensors").touch()
    with pytest.raises(DataError, match="no reward model in it that was measured has the weights of"):
        prepare(run, "people/judge", evaluations=[evaluation])
    with pytest.raises(DataError, match="not the configuration of an evaluation"):
        prepare(run, "people/judge", evaluations=[run])


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_no_text_from_outside_means_anything(finished: Path, culture: str) -> None:
    run = read_run(finished)
    measured = run.measurements[0]
    by_culture = {f"{culture}|<b>`x`\x1b[2J": measured.summary["by_culture"]["TH"]}
    spoilt = replace(measured, summary={**measured.summary, "by_culture": by_culture, "protocol": f"---\n# {culture}"})
    text = card(replace(run, measurements=(spoilt,)), "people/judge", adapter=False).text().decode()
    plain = card(run, "people/judge", adapter=False).text().decode()
    assert len(text.splitlines()) == len(plain.splitlines())
    assert text.count("<") == plain.count("<")
    assert len(re.findall(r"(?<!\\)`", text)) == len(re.findall(r"(?<!\\)`", plain))
    assert "\x1b" not in text
    assert ModelCard(text).data.to_dict() == ModelCard(plain).data.to_dict()


def test_no_item_is_told(run: Path) -> None:
    push = prepare(run, "people/judge")
    told = b"".join(file.text() for file in push.files if file.path.startswith(("README", "carb/", "prompt/")))
    for item in ITEMS:
        assert item.prompt.encode() not in told


def test_every_source_of_data_has_a_description() -> None:
    assert set(_DATA) == set(get_args(DataSource))
