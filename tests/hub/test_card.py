"""Model cards: exact figures of what was done and measured, and `unknown` for everything else."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from conftest import ROOT
from hub.small_runs import REPO, card_of, content_of, refused, write_evaluation
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_models.tiny import ITEMS

from think_as_locals.config.checks import load_config, load_recipe
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.hub.card import model_card
from think_as_locals.hub.push import prepare
from think_as_locals.hub.source_run import JudgeRun, ScalarRun, read_judge_run
from think_as_locals.reward_models.reward_model import identify_weights
from think_as_locals.runtime.files import write_json
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.scpo.results import VariantResult, VariantSpec
from think_as_locals.types import DataError

COMMIT = "0123456789abcdef" * 2 + "01234567"


def part(n: int, accuracy: float, gain: float = 0.0) -> dict[str, Any]:
    """An accuracy among the figures of SCPO."""
    gained = {"mean": gain, "ci95": [gain - 0.02, gain + 0.02]}
    return {"n": n, "accuracy": accuracy, "ci95": [accuracy - 0.05, accuracy + 0.05], "gain": gained}


def distance(mean: float) -> dict[str, Any]:
    return {"n": 7, "mean": mean, "ci95": [mean - 0.05, mean + 0.05]}


GLOBAL = {"overall": part(240, 0.733), "minority": part(165, 0.612), "others": part(240, 0.783)}
THAI = {"overall": part(240, 0.683, -0.05), "minority": part(165, 0.63, 0.018), "others": part(240, 0.654, -0.129)}
ONE_SEED, NO_DISTANCE = {"n": 1, "overall": None, "minority": None}, {"n": 0}
SEEDS = {"n": 3, "overall": 0.0123, "minority": 0.0456}
ENVIRONMENT = {
    "python": "3.11.7",
    "packages": {"think-as-locals": "0.1.0", "torch": "2.13.0+cpu", "trl": "1.16.0"},
    "git": {"commit": COMMIT, "dirty": True},
}


def judge_run(folder: Path, *overrides: str, **known: Any) -> JudgeRun:
    config = load_recipe("recipes/quickstart.yaml", ["run.name=mine", *overrides])
    return replace(read_judge_run(folder), **{"environment": ENVIRONMENT, "config": config, **known})


def steered_run(
    folder: Path, recipe: str, *overrides: str, spec: Mapping[str, Any] | None = None, **figures: Any
) -> ScalarRun:
    """Of a steered reward model."""
    spec = {"country": "TH", "variant": "scpo", "seed": 0, **(spec or {})}
    known = {"resampled": "people", "differences": [], "distance": NO_DISTANCE, "seeds": ONE_SEED, **figures}
    return ScalarRun(
        folder=RunFolder(folder),
        model=folder / "model",
        config=cast("ScpoConfig", load_config(f"recipes/{recipe}.yaml", ["run.name=mine", *overrides])),
        environment=ENVIRONMENT,
        results=(),
        hours=1.5,
        device="cpu",
        parameters=3_500_000,
        result=VariantResult(spec=VariantSpec(**spec), available=720, kept=478, steps=3, mean_weight=0.5, scores={}),
        figures={**known, "rows": [{**GLOBAL, "distance": distance(0.4)}, {**THAI, **known}]},
    )


DEMONSTRATED = ("trainer=demonstrated_grpo", "sft.data=demonstrations.jsonl")
HUB_DATA = ("reward=j1", "data=helpsteer3", "data.path=nvidia/HelpSteer3:preference", "model=qwen2_5_7b", *DEMONSTRATED)
OWN_DATA = ("data=rows", "data.path=my.csv")
MIX = ("data=mix", "data.weights={cards: 2, survey: 0.5}")
MIX += ("data.mix.cards=quickstart_cards", "data.mix.survey=globalopinionqa", "data.mix.survey.path=mine.csv")
UNKNOWN = {"environment": {}, "results": (), "hours": None, "device": None, "parameters": None, "steps": None}
HOSTILE = ["A country's model is trained and scored with dropout on.", "# <b>`x`\x1b[2J"]
CARDS: dict[str, Callable[[Path], JudgeRun | ScalarRun]] = {
    "judge": judge_run,
    "judge_of_which_little_is_known": lambda folder: judge_run(folder, **UNKNOWN),
    "judge_on_gpus": lambda folder: judge_run(folder, *HUB_DATA, device="NVIDIA H100 80GB HBM3"),
    "judge_on_own_pairs": lambda folder: judge_run(folder, *OWN_DATA, stated_licence="cc-by-4.0"),
    "judge_of_a_mix": lambda folder: judge_run(folder, *MIX),
    "steered": lambda folder: steered_run(folder, "scpo_quickstart"),
    "steered_with_template_arguments": lambda folder: steered_run(
        folder, "scpo_quickstart", "+model.chat_template_kwargs.system='```\n<b>'"
    ),
    "steered_as_released": lambda folder: steered_run(
        folder, "scpo_prism", "mode=as_released", "lora=rank16", differences=HOSTILE
    ),
    "steered_on_a_survey": lambda folder: steered_run(
        folder, "scpo_globalopinionqa", resampled="questions of the survey", distance=distance(0.35)
    ),
    "steered_baseline_of_several_seeds": lambda folder: steered_run(
        folder, "scpo_quickstart", spec={"variant": "full", "seed": 2}, seeds=SEEDS, others={"n": 0}
    ),
    "scalar": lambda folder: replace(
        run := steered_run(folder, "scalar", "data.path=BLEnD"),
        result=None,
        figures={**run.figures, "rows": [GLOBAL, {**GLOBAL, "country": "TH"}], "resampled": "question groups"},
    ),
}


@pytest.mark.parametrize("name", CARDS)
def test_card_matches_the_golden_file(finished: Path, name: str) -> None:
    """What is done, measured and unknown, word for word; with UPDATE_GOLDEN set, the cards are recorded anew."""
    card = model_card(CARDS[name](finished), REPO, adapter=False).text()
    golden = ROOT / f"tests/golden/cards/{name}.txt"
    if "UPDATE_GOLDEN" in os.environ:
        golden.write_bytes(card)
    assert card.decode() == golden.read_text(encoding="utf-8")


def test_unrecorded_values_are_unknown(run: Path) -> None:
    for name in ("environment.json", "workers.json", "metrics.jsonl", "carb/step-0.json", "carb/step-30.json"):
        (run / name).unlink()
    found = read_judge_run(run)
    assert {name: getattr(found, name) for name in UNKNOWN} == UNKNOWN


def test_card_has_every_result_of_an_evaluation_of_the_same_weights(run: Path, tmp_path: Path) -> None:
    evaluation = write_evaluation(tmp_path / "elsewhere", run / "model")
    for mine in (*evaluation.glob("*/mine.json"), evaluation / "journals" / "mine.jsonl"):
        shutil.copy(mine, mine.with_stem("by_pairs"))
    shutil.copy(evaluation / "carb" / "mine.json", evaluation / "carb" / "random_head.json")
    identity = {"kind": "classifier", "weights": identify_weights(str(run / "model"), None)}
    (evaluation / "journals" / "random_head.jsonl").write_text(json.dumps({"identity": identity}) + "\n")
    by_pairs = evaluation / "carb" / "by_pairs.json"
    write_json(by_pairs, json.loads(by_pairs.read_text()) | {"protocol": "pairwise"})
    for name, torn in (("empty", b""), ("torn", b'{"identity": {"mod')):
        (evaluation / "journals" / f"{name}.jsonl").write_bytes(torn)
    (run / "model" / "LICENSE").write_text("ours")  # as --license other asks for afterwards
    content = content_of(prepare(run, REPO, evaluations=[evaluation]))
    stages = [f"{stage}/elsewhere-{name}.json" for stage in ("carb", "probes") for name in ("by_pairs", "mine")]
    assert set(stages) <= content.keys()
    text = content["README.md"].decode()
    assert re.findall(r"### (.*): the culture cards", text)[1:] == [r"elsewhere, by\_pairs", "elsewhere, mine"]
    assert text.count("; pairwise; in format ") == 1


def test_evaluation_on_training_items_is_marked(run: Path, tmp_path: Path) -> None:
    evaluation = write_evaluation(tmp_path / "elsewhere", run / "model")
    result = evaluation / "carb" / "mine.json"
    for count in (2, 0):
        write_json(result, json.loads(result.read_text()) | {"trained_on": {"items": count, "n": 6}})
        text = card_of(run, evaluation)
        assert ("**The model was trained on 2 of these 6 items.**" in text) == bool(count)
        assert "may have seen" not in text  # it is known


def test_evaluation_of_other_weights_is_rejected(run: Path, tmp_path: Path) -> None:
    evaluation = write_evaluation(tmp_path / "elsewhere", run / "model")
    twice = r"evaluations with the same name \(step-30, elsewhere, elsewhere\)"
    refused(DataError, twice, run, evaluations=[evaluation, evaluation])
    (run / "model" / "model.safetensors").touch()
    refused(DataError, "no reward model evaluated there has the weights of", run, evaluations=[evaluation])
    refused(DataError, "not the configuration of an evaluation", run, evaluations=[run])


@pytest.fixture(scope="module")
def plain(finished: Path) -> tuple[JudgeRun, str]:
    run = read_judge_run(finished)
    return run, model_card(run, REPO, adapter=False).text().decode()


@settings(max_examples=10)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_untrusted_text_is_escaped(plain: tuple[JudgeRun, str], culture: str) -> None:
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


def test_items_without_a_culture_count_under_their_language_once(plain: tuple[JudgeRun, str]) -> None:
    run, expected = plain
    result = run.results[0]
    by_culture = {"English": result.summary["by_culture"]["TH"]}
    told = replace(result, summary={**result.summary, "by_culture": by_culture})
    text = model_card(replace(run, results=(told,)), REPO, adapter=False).text().decode()
    assert "- **Cultures measured**: Thailand (TH)\n" in expected
    assert "- **Cultures measured**: English\n" in text


def test_no_item_text_is_published(run: Path) -> None:
    content = content_of(prepare(run, REPO))
    texts = b"".join(text for path, text in content.items() if path.startswith(("README", "carb/", "prompt/")))
    for item in ITEMS:
        assert item.prompt.encode() not in texts
