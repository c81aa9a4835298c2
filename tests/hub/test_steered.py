"""Pushes of an SCPO reward model: its files, its unchanged scores, and its country's figures on the card."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hub.fake_hub import FakeHub
from hub.small_runs import REPO, card_of, content_of, download, refused, write_evaluation
from huggingface_hub import HfApi

from think_as_locals.config.checks import load_config
from think_as_locals.data import read
from think_as_locals.data.splits import split_people
from think_as_locals.evaluation.journal import content_key
from think_as_locals.hub.push import prepare, upload
from think_as_locals.reward_models.scalar import ScalarRM
from think_as_locals.scpo.results import read_result
from think_as_locals.types import ConfigError, DataError

pytestmark = pytest.mark.slow  # what is pushed was trained

THAI = "TH/scpo-seed-0"
FROM_MODEL = {
    *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    "training_items.txt",
}


def test_pushed_files_are_the_allowed_ones_and_score_the_same(
    steered: Path, hub: FakeHub, api: HfApi, tmp_path: Path
) -> None:
    model = steered / "models" / THAI
    assert not (model / "training_args.bin").exists()
    for name in ("optimizer.pt", ".env", "tal_judge.json", "generation.json", "training_args.bin"):
        (model / name).write_bytes(b"planted")
    upload(prepare(steered, REPO, model=THAI).files, REPO, public=False, update=False, revision=None, api=api)
    files = hub.repositories[REPO].files()
    assert set(files) == FROM_MODEL | {"README.md", "scpo.json"}
    assert {name for name in FROM_MODEL if files[name] == (model / name).read_bytes()} == FROM_MODEL
    back = download(files, tmp_path / "back")
    assert hub.repositories[REPO].private
    assert not any(b"planted" in body for *_, body in hub.requests)

    config = load_config("recipes/scpo_quickstart.yaml", ['data.countries=["TH"]', "data.groups=[street_snack]"])
    pairs = split_people(read(config.data, config.seed), config.data.test_share, config.seed, by_country=True)
    items = list(pairs.test[:20])
    before, after = (ScalarRM.load(str(folder)).score(items) for folder in (model, back))
    assert after == before
    result = read_result(steered / "variants" / THAI)
    assert result is not None
    recorded = [result.scores[content_key(item.prompt, text)] for item in items for text in item.responses]
    assert [score for pair in after for score in pair] == pytest.approx(recorded, abs=1e-5)


def test_card_hours_include_the_model_and_the_global_rm(steered: Path) -> None:
    lines = [{"stage": stage, "step": 1, "train_runtime": 1800.0} for stage in ("global_rm", THAI, "JP/scpo-seed-0")]
    (steered / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text = card_of(steered, model=THAI)
    assert "**CPU hours**: 1, all training processes together (cpu)" in text
    assert "including the global reward model's training" in text
    (steered / "workers.json").unlink()
    assert "**Hours**: not measured" in card_of(steered, model=THAI)


def test_card_figures_match_the_country_or_are_those_of_the_global_reward_model(steered_run: Path) -> None:
    found = json.loads((steered_run / "scpo.json").read_text())
    before, after = (row for row in found["rows"] if row["country"] == "TH")
    content = content_of(prepare(steered_run, REPO, model=THAI))
    assert json.loads(content["scpo.json"])["rows"] == [before, after]
    text = content["README.md"].decode()
    for key in ("overall", "minority", "others"):
        now, then = (f"{100 * row[key]['accuracy']:.1f} [" for row in (after, before))
        assert re.search(rf"\| {after[key]['n']} \| {re.escape(now)}.*\| {re.escape(then)}", text), key
    content = content_of(prepare(steered_run, REPO, model="global_rm"))
    assert content["config.json"] == (steered_run / "global_rm" / "model" / "config.json").read_bytes()
    rows = [row for row in found["rows"] if row["variant"] == "global"]
    assert json.loads(content["scpo.json"])["rows"] == [found["means"][0], *rows]
    assert "steered to" not in content["README.md"].decode()


@pytest.mark.parametrize("chat", [True, False], ids=["chat template", "text pair"])
def test_card_examples_reproduce_the_scores(steered: Path, chat: bool, capsys: pytest.CaptureFixture[str]) -> None:
    model = steered / "models" / THAI
    if not chat:
        (model / "chat_template.jinja").unlink()
    card = card_of(steered, model=THAI).replace(REPO, str(model))
    ours, transformers = re.findall(r"```python\n(.+?)```", card, re.DOTALL)
    exec(ours, {})  # noqa: S102
    exec(transformers, {})  # noqa: S102
    scores, score = capsys.readouterr().out.splitlines()[-2:]
    assert float(score) == pytest.approx(json.loads(f"[{scores[1:-1]}]")[1], abs=1e-5)
    assert len(transformers.splitlines()) <= 8


def test_card_includes_carb_of_an_evaluation_of_the_same_weights(steered: Path, tmp_path: Path) -> None:
    evaluation = write_evaluation(tmp_path / "elsewhere", steered / "models" / THAI, kind="classifier")
    content = content_of(prepare(steered, REPO, model=THAI, evaluations=[evaluation]))
    assert {"carb/elsewhere.json", "probes/elsewhere.json"} <= content.keys()
    assert "### elsewhere: the culture cards" in content["README.md"].decode()
    other = {"model": "EG/scpo-seed-0", "evaluations": [evaluation]}
    refused(DataError, "no reward model evaluated there has the weights of", steered, **other)


def test_missing_model_or_records_are_rejected(steered: Path, run: Path) -> None:
    for model in (None, "TH", "TH/full-seed-0", "../models/TH/scpo-seed-0", "TH/scpo-seed-0/"):
        refused(ConfigError, r"--model: got .*keeps: EG/scpo-seed-0, TH/scpo-seed-0", steered, model=model)
    refused(DataError, r"no scpo.json; --model chooses a reward model of a finished SCPO run", run, model=THAI)
    refused(ConfigError, "adapters merged into them: push without --adapter", steered, model=THAI, adapter=True)
    (steered / "variants" / THAI / "result.json").unlink()
    refused(DataError, "no record of the training in variants/TH/scpo-seed-0", steered, model=THAI)


def test_push_of_a_reward_model_replaces_a_judge(run: Path, steered_run: Path, hub: FakeHub, api: HfApi) -> None:
    for files in (prepare(run, REPO).files, prepare(steered_run, REPO, model=THAI).files):
        upload(files, REPO, public=False, update=True, revision=None, api=api)
    assert set(hub.repositories[REPO].files()) == FROM_MODEL | {"README.md", "scpo.json"}
