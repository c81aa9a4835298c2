"""A reward model that SCPO steered: its files arrive, it scores as before, and the card has its country's figures."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hub.fake_hub import FakeHub
from hub.small_runs import card_of, content_of, write_evaluation
from huggingface_hub import HfApi, ModelCard

from think_as_locals.cli import main
from think_as_locals.config.checks import load_config
from think_as_locals.config.schema import ScpoConfig
from think_as_locals.data import read
from think_as_locals.data.splits import split_people
from think_as_locals.evaluation.journal import content_key
from think_as_locals.hub.card import model_card
from think_as_locals.hub.leaks import LeakError
from think_as_locals.hub.push import prepare, upload
from think_as_locals.hub.source_run import SteeredRun, read_steered_run
from think_as_locals.reward_models.scalar import ScalarRM
from think_as_locals.scpo.results import read_result
from think_as_locals.types import ConfigError, DataError

pytestmark = pytest.mark.slow  # what is pushed was trained

REPO, THAI = "people/thai-rm", "TH/scpo-seed-0"
FROM_MODEL = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


def card_with(run: Path, recipe: str = "", *overrides: str, **figures: Any) -> str:
    """The card of a run, as if it had another configuration or other figures."""
    read_run = read_steered_run(run, THAI)
    read_run = replace(read_run, figures={**read_run.figures, **figures})
    if recipe:
        config = load_config(f"recipes/{recipe}.yaml", overrides)
        assert isinstance(config, ScpoConfig)
        read_run = replace(read_run, config=config)
    return text_of(read_run)


def text_of(run: SteeredRun) -> str:
    return model_card(run, REPO, adapter=False).text().decode()


def test_exactly_the_allowed_files_arrive_and_score_as_before(
    steered: Path, hub: FakeHub, api: HfApi, tmp_path: Path
) -> None:
    model, back = steered / "models" / THAI, tmp_path / "back"
    (tmp_path / "secret").write_bytes(b"planted")
    for name in ("optimizer.pt", ".env", "tal_judge.json", "generation.json"):
        (model / name).write_bytes(b"planted")
    (model / "merges.txt").symlink_to(tmp_path / "secret")
    assert (model / "training_args.bin").is_file()
    upload(prepare(steered, REPO, model=THAI).files, REPO, public=False, update=False, revision=None, api=api)
    files = hub.repositories[REPO].files()
    assert set(files) == FROM_MODEL | {"README.md", "scpo.json"}
    back.mkdir()
    for name, content in files.items():
        (back / name).write_bytes(content)
        assert name not in FROM_MODEL or content == (model / name).read_bytes(), name
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


def test_hours_are_those_of_this_model_and_of_the_global_one(steered: Path) -> None:
    lines = [{"stage": stage, "step": 1, "train_runtime": 1800.0} for stage in ("global_rm", THAI, "JP/scpo-seed-0")]
    (steered / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text = card_of(steered, model=THAI)
    assert "**CPU hours**: 1, all training processes together (cpu)" in text
    assert "including the global reward model's training" in text
    (steered / "workers.json").unlink()
    assert "**Hours**: not measured" in card_of(steered, model=THAI)


def test_figures_are_those_of_its_country(steered_run: Path) -> None:
    found = json.loads((steered_run / "scpo.json").read_text())
    before, after = (row for row in found["rows"] if row["country"] == "TH")
    content = content_of(prepare(steered_run, REPO, model=THAI))
    assert json.loads(content["scpo.json"])["rows"] == [before, after]
    text = content["README.md"].decode()

    def percent(form: str, value: float, part: dict[str, Any]) -> str:
        return form.format(*(100 * number for number in (value, *part["ci95"])))

    names = ("Thailand (TH)", "Thailand (TH), minority view", "all other countries of the run")
    for name, key in zip(names, ("overall", "minority", "others"), strict=True):
        now, then = (percent("{:.1f} [{:.1f}, {:.1f}]", row[key]["accuracy"], row[key]) for row in (after, before))
        gain = percent("{:+.1f} [{:+.1f}, {:+.1f}]", after[key]["gain"]["mean"], after[key]["gain"])
        assert f"| {name} | {after[key]['n']} | {now} | {then} | {gain} |\n" in text, key
    table = re.search(r"\|---\|---\|---\|---\|---\|\n((?:\|.*\|\n)+)\n", text)  # one table, without gaps
    assert table is not None
    assert len(table[1].splitlines()) == 3


def test_a_card_says_what_was_done(steered_run: Path) -> None:
    text, result = text_of(read_steered_run(steered_run, THAI)), read_result(steered_run / "variants" / THAI)
    assert result is not None
    for part in (
        "steered to one country, Thailand (TH), by Steerable Cultural Preference Optimization",
        "preferences of simulated people",
        "nobody was asked",
        "randomly initialised, then trained on the pairs of all countries of the run for 5 steps",
        f"{result.available} of this country, of which {result.kept} ({100 * result.kept / result.available:.1f} %)",
        "< tau, here 0.7",
        "beta here 1.1",
        "**Mode**: corrected, as in the SCPO paper\n",
        "**Training**: 3 steps, learning rate 0.0007\n",
        "trl 1.16.",
        "## CARB\n\nNot measured.",
        "arXiv 2606.18606",
    ):
        assert part in text, part
    assert "means over" not in text  # one seed
    data = ModelCard(text).data.to_dict()
    assert (data["library_name"], data["pipeline_tag"]) == ("transformers", "text-classification")
    assert "scpo" in data["tags"]
    assert not {"base_model", "datasets", "license"} & set(data)


@pytest.mark.parametrize("chat", [True, False], ids=["chat template", "text pair"])
def test_the_examples_of_the_card_give_its_scores(
    steered: Path, chat: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    model = steered / "models" / THAI
    if not chat:
        (model / "chat_template.jinja").unlink()
    card = text_of(read_steered_run(steered, THAI)).replace(REPO, str(model))
    ours, transformers = re.findall(r"```python\n(.+?)```", card, re.DOTALL)
    exec(ours, {})  # noqa: S102
    exec(transformers, {})  # noqa: S102
    scores, score = capsys.readouterr().out.splitlines()[-2:]
    assert float(score) == pytest.approx(json.loads(f"[{scores[1:-1]}]")[1], abs=1e-5)
    assert len(transformers.splitlines()) <= 8


def test_a_card_names_other_data_base_template_and_differences(steered_run: Path) -> None:
    differences = ["A country's model is trained and scored with dropout on.", "# <b>`x`\x1b[2J"]
    text = card_with(steered_run, "scpo_prism", "mode=as_released", "lora=rank16", differences=differences)
    for part in (
        "PRISM, arXiv 2404.16019 (licence: prompts CC-BY-4.0, responses CC-BY-NC-4.0), HannahRoseKirk/prism-alignment ",
        "trained on CC-BY-NC data, which may not be used commercially; the terms of the base model and the data apply",
        "OpenAssistant/reward-model-deberta-v3-base, revision main\n",
        "**Mode**: as\\_released, which differs from the SCPO paper:\n  - A country's model is trained",
        "  - \\# &lt;b&gt;\\`x\\`",
        "r+ < r-, which the global reward model ranks the other way round",
        "LoRA of rank 16, merged into these weights\n",
    ):
        assert part in text, part
    assert "\x1b" not in text
    data = ModelCard(text).data.to_dict()
    assert data["base_model"] == "OpenAssistant/reward-model-deberta-v3-base"
    assert data["base_model_relation"] == "finetune"
    assert data["datasets"] == ["HannahRoseKirk/prism-alignment"]
    text = card_with(steered_run, "scpo_quickstart", "+model.chat_template_kwargs.system='```\n<b>'")
    for call in ('load("people/thai-rm", template_kwargs=', "return_dict=True, **"):
        assert call + r"{'system': '```\n<b>'})" in text


def test_a_card_of_a_survey_has_distances_and_other_countries_as_reference(steered_run: Path) -> None:
    rows = [
        row | {"distance": {"n": 7, "mean": mean, "ci95": [mean - 0.05, mean + 0.05]}}
        for row, mean in zip(read_steered_run(steered_run, THAI).figures["rows"], (0.4, 0.35), strict=True)
    ]
    text = card_with(steered_run, "scpo_globalopinionqa", resampled="questions of the survey", rows=rows)
    assert "7 questions: 0.350 [0.300, 0.400]; of the global reward model 0.400 [0.350, 0.450].\n\n## CARB" in text
    assert "which the mean of other countries' answers does not clearly agree with" in text
    assert "15 % of the questions of the survey kept for testing" in text


def test_a_card_of_a_baseline_and_several_seeds(steered_run: Path) -> None:
    run = read_steered_run(steered_run, THAI)
    before, after = run.figures["rows"]
    after = after | {"seeds": {"n": 3, "overall": 0.0123, "minority": 0.0456}, "others": {"n": 0}}
    result = replace(run.result, spec=replace(run.result.spec, variant="full", seed=2))
    text = text_of(replace(run, result=result, figures={**run.figures, "rows": [before, after]}))
    for part in (
        "as a baseline of Steerable Cultural Preference Optimization",
        "**Variant**: full fine-tuning.",
        "seed 2\n",
        "means over\n3 training seeds, of which this model is one; standard deviation over them: 1.2",
        "4.6 (minority view)",
        "| all other countries of the run | 0 | none | none | none |",
        "Its accuracy on pairs of other countries was not measured.",
    ):
        assert part in text, part


def test_carb_of_an_evaluation_of_these_weights(steered: Path, tmp_path: Path) -> None:
    evaluation = write_evaluation(tmp_path / "elsewhere", steered / "models" / THAI, kind="classifier")
    content = content_of(prepare(steered, REPO, model=THAI, evaluations=[evaluation]))
    assert {"carb/elsewhere.json", "probes/elsewhere.json"} <= content.keys()
    assert ".eval_results/carb.yaml" not in content  # its data is not on the Hub
    assert "### elsewhere: the culture cards" in content["README.md"].decode()
    with pytest.raises(DataError, match="no reward model measured there has the weights of"):
        prepare(steered, REPO, model="EG/scpo-seed-0", evaluations=[evaluation])


def test_a_run_without_such_a_model_or_its_records_is_refused(steered: Path, run: Path) -> None:
    for model in (None, "TH", "TH/full-seed-0", "../models/TH/scpo-seed-0", "TH/scpo-seed-0/"):
        with pytest.raises(ConfigError, match=r"--model: got .*keeps: EG/scpo-seed-0, TH/scpo-seed-0"):
            prepare(steered, REPO, model=model)
    with pytest.raises(DataError, match=r"no scpo.json; --model chooses a reward model of a finished SCPO run"):
        prepare(run, REPO, model=THAI)
    with pytest.raises(ConfigError, match="adapters merged into them: push without --adapter"):
        prepare(steered, REPO, model=THAI, adapter=True)
    figures = json.loads((steered / "scpo.json").read_text())
    for spoilt, message in (
        ({**figures, "rows": figures["rows"][:3]}, "has no row of TH for scpo"),
        ({"rows": []}, "lacks dataset, differences, filter_threshold"),
    ):
        (steered / "scpo.json").write_text(json.dumps(spoilt))
        with pytest.raises(DataError, match=f"scpo.json: {message}"):
            prepare(steered, REPO, model=THAI)
    (steered / "variants" / THAI / "result.json").unlink()
    with pytest.raises(DataError, match="no record of the training in variants/TH/scpo-seed-0"):
        prepare(steered, REPO, model=THAI)


@pytest.mark.parametrize("linked", ["models", "models/TH", f"models/{THAI}", f"models/{THAI}/model.safetensors"])
def test_links_are_not_followed(steered: Path, tmp_path: Path, linked: str) -> None:
    (steered / linked).rename(tmp_path / "elsewhere")
    (steered / linked).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="links do not count"):
        prepare(steered, REPO, model=THAI)


def test_leaks_are_found(steered: Path) -> None:
    path = steered / "models" / THAI / "config.json"
    config = json.loads(path.read_text())
    for planted, kind in ((str(steered / "global_rm"), "a path of the run"), ("hf_" + "aB3" * 12, "a Hugging Face")):
        path.write_text(json.dumps({**config, "note": planted}))
        with pytest.raises(LeakError, match=f"config.json: {kind}"):
            prepare(steered, REPO, model=THAI)


def test_a_reward_model_replaces_a_judge(run: Path, steered_run: Path, hub: FakeHub, api: HfApi) -> None:
    for files in (prepare(run, REPO).files, prepare(steered_run, REPO, model=THAI).files):
        upload(files, REPO, public=False, update=True, revision=None, api=api)
    assert set(hub.repositories[REPO].files()) == FROM_MODEL | {"README.md", "scpo.json"}


def test_the_command(steered_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tal", "push", str(steered_run), "--repo", REPO, "--dry-run"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit):
        main()
    assert "--model: got nothing, expected one of" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", [*words, "--model", THAI])
    main()
    shown = capsys.readouterr().out
    assert f"left out  models/{THAI}/'training_args.bin': not on the list" in shown
    assert set(re.findall(r"(?m)^ *[\d,]+  [0-9a-f]{64}  (.+)$", shown)) == FROM_MODEL | {"README.md", "scpo.json"}
