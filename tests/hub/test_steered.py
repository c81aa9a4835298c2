"""A reward model that SCPO steered: exactly its files go, it scores as before, and the card says whom it prefers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hub.fake_hub import FakeHub
from hub.small_runs import write_evaluation
from huggingface_hub import HfApi, ModelCard

from think_as_locals.cli import main
from think_as_locals.config import load_config
from think_as_locals.data import read
from think_as_locals.data.people import split_people
from think_as_locals.evaluation.journal import content_key
from think_as_locals.evaluation.legs import read_leg
from think_as_locals.hub.card import card
from think_as_locals.hub.leaks import LeakError
from think_as_locals.hub.push import prepare
from think_as_locals.hub.steered import SteeredRun, read_steered
from think_as_locals.hub.upload import upload
from think_as_locals.models.scalar import ScalarRM
from think_as_locals.scpo_schema import ScpoConfig
from think_as_locals.types import ConfigError, DataError, Item

pytestmark = pytest.mark.slow  # what is pushed was trained

REPO, THAI = "people/thai-rm", "TH/scpo-seed-0"
FROM_MODEL = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


@pytest.fixture(scope="module")
def items() -> list[Item]:
    """Pairs that the run tested on."""
    config = load_config("recipes/scpo_quickstart.yaml", ['data.countries=["TH"]', "data.groups=[street_snack]"])
    pairs = split_people(read(config.data, config.seed), config.data.test_share, config.seed, by_country=True)
    return list(pairs.test[:20])


def card_of(run: Path, *evaluations: Path) -> str:
    files = {file.path: file for file in prepare(run, REPO, model=THAI, evaluations=evaluations).files}
    return files["README.md"].text().decode()


def pushed(run: Path, hub: FakeHub, api: HfApi, folder: Path) -> Path:
    """What the Hub has of a push, downloaded."""
    upload(prepare(run, REPO, model=THAI).files, REPO, public=False, update=False, revision=None, api=api)
    folder.mkdir()
    for path, content in hub.repositories[REPO].files().items():
        (folder / path).write_bytes(content)
    return folder


def with_config(run: SteeredRun, recipe: str, *overrides: str) -> SteeredRun:
    config = load_config(f"recipes/{recipe}.yaml", overrides)
    assert isinstance(config, ScpoConfig)
    return replace(run, config=config)


def told(run: SteeredRun) -> str:
    return card(run, REPO, adapter=False).text().decode()


def test_exactly_the_list_arrives_and_scores_as_before(
    steered: Path, hub: FakeHub, api: HfApi, tmp_path: Path, items: list[Item]
) -> None:
    model = steered / "models" / THAI
    (tmp_path / "secret").write_bytes(b"planted")
    for name in ("optimizer.pt", ".env", "tal_judge.json", "generation.json"):
        (model / name).write_bytes(b"planted")
    (model / "merges.txt").symlink_to(tmp_path / "secret")
    assert (model / "training_args.bin").is_file()
    back = pushed(steered, hub, api, tmp_path / "back")
    assert {path.name for path in back.iterdir()} == FROM_MODEL | {"README.md", "scpo.json"}
    for name in FROM_MODEL:
        assert (back / name).read_bytes() == (model / name).read_bytes(), name
    assert hub.repositories[REPO].private
    assert not any(b"planted" in body for *_, body in hub.requests)

    before, after = (ScalarRM.load(str(folder)).score(items) for folder in (model, back))
    assert after == before
    leg = read_leg(steered / "legs" / THAI)
    assert leg is not None
    recorded = [tuple(leg.scores[content_key(item.prompt, text)] for text in item.responses) for item in items]
    assert [score for pair in after for score in pair] == pytest.approx(
        [s for pair in recorded for s in pair], abs=1e-5
    )


def test_hours_are_those_of_this_model_and_of_the_global_one(steered: Path) -> None:
    lines = [{"stage": stage, "step": 1, "train_runtime": 1800.0} for stage in ("global_rm", THAI, "JP/scpo-seed-0")]
    (steered / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    workers = json.loads((steered / "workers.json").read_text())
    assert (workers["device"], len(workers["ranks"])) == ("cpu", 1)
    said = "**CPU hours**: 1, all training processes together (cpu)"
    assert said in (text := card_of(steered))
    assert "and the global reward model's training with it" in text
    (steered / "workers.json").unlink()
    assert "**Hours**: not measured" in card_of(steered)


def test_figures_are_those_of_its_country(steered: Path) -> None:
    found = json.loads((steered / "scpo.json").read_text())
    before, after = (row for row in found["rows"] if row["country"] == "TH")
    files = {file.path: file.text() for file in prepare(steered, REPO, model=THAI).files}
    assert json.loads(files["scpo.json"])["rows"] == [before, after]
    text = files["README.md"].decode()
    for name, key in (
        ("Thailand (TH)", "overall"),
        ("Thailand (TH), minority view", "minority"),
        ("all other countries of the run", "others"),
    ):
        now, then = (_percent("{:.1f} [{:.1f}, {:.1f}]", row[key]["accuracy"], row[key]) for row in (after, before))
        gain = _percent("{:+.1f} [{:+.1f}, {:+.1f}]", after[key]["gain"]["mean"], after[key]["gain"])
        assert f"| {name} | {after[key]['n']} | {now} | {then} | {gain} |\n" in text, key
    table = re.search(r"\|---\|---\|---\|---\|---\|\n((?:\|.*\|\n)+)\n", text)  # one table, without gaps
    assert table is not None
    assert len(table[1].splitlines()) == 3


def test_what_was_done_is_told(steered: Path) -> None:
    text, leg = card_of(steered), json.loads((steered / "legs" / THAI / "leg.json").read_text())
    share = 100 * leg["kept"] / leg["available"]
    for words in (
        "steered to one country, Thailand (TH), by Steerable Cultural Preference Optimization",
        "preferences of simulated people",
        "nobody was asked",
        "made from nothing, and taught by the pairs of all countries of the run in 5 steps",
        f"**Pairs**: {leg['available']} of this country, of which {leg['kept']} ({share:.1f} %)",
        "< tau, here 0.7",
        "beta here 1.1",
        "**Mode**: corrected, as SCPO is described\n",
        "**Training**: 3 steps, learning rate 0.0007\n",
        "trl 1.16.",
        "## CARB\n\nNot measured.",
        "arXiv 2606.18606",
    ):
        assert words in text, words
    assert "means over" not in text  # one seed
    data = ModelCard(text).data.to_dict()
    assert (data["library_name"], data["pipeline_tag"]) == ("transformers", "text-classification")
    assert "scpo" in data["tags"]
    assert not {"base_model", "datasets", "license"} & set(data)


@pytest.mark.parametrize("chat", [True, False], ids=["chat template", "text pair"])
def test_its_lines_of_use_give_its_scores(
    steered: Path, chat: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = steered / "models" / THAI
    if not chat:
        (model / "chat_template.jinja").unlink()
    ours, transformers = re.findall(r"```python\n(.+?)```", card_of(steered).replace(REPO, str(model)), re.DOTALL)
    exec(ours, {})  # noqa: S102 - what the card says
    exec(transformers, {})  # noqa: S102
    scores, score = capsys.readouterr().out.splitlines()[-2:]
    assert float(score) == pytest.approx(json.loads(f"[{scores[1:-1]}]")[1], abs=1e-5)
    assert len(transformers.splitlines()) <= 8


def test_arguments_of_its_chat_template_are_in_those_lines(steered_run: Path) -> None:
    run = with_config(
        read_steered(steered_run, THAI), "scpo_quickstart", "+model.chat_template_kwargs.system='```\n<b>'"
    )
    text = told(run)
    for call in ('load("people/thai-rm", template_kwargs=', "return_dict=True, **"):
        assert call + r"{'system': '```\n<b>'})" in text


def test_data_base_and_differences_are_told(steered_run: Path) -> None:
    run = with_config(read_steered(steered_run, THAI), "scpo_prism", "mode=as_released", "lora=rank16")
    said = ["A country's model is trained and scored with dropout on.", "# <b>`x`\x1b[2J"]
    text = told(replace(run, figures={**run.figures, "differences": said}))
    for words in (
        "PRISM, arXiv 2404.16019 (licence: prompts CC-BY-4.0, responses CC-BY-NC-4.0), HannahRoseKirk/prism-alignment ",
        "learnt from CC-BY-NC data, which may not be used commercially; the terms of base model and data hold",
        "OpenAssistant/reward-model-deberta-v3-base, revision main\n",
        "**Mode**: as\\_released, which departs from SCPO's description:\n  - A country's model is trained",
        "  - \\# &lt;b&gt;\\`x\\`",
        "r+ < r-, which the global reward model has the other way round",
        "LoRA of rank 16, merged into these weights\n",
    ):
        assert words in text, words
    assert "\x1b" not in text
    data = ModelCard(text).data.to_dict()
    assert data["base_model"] == "OpenAssistant/reward-model-deberta-v3-base"
    assert data["base_model_relation"] == "finetune"
    assert data["datasets"] == ["HannahRoseKirk/prism-alignment"]


def test_a_survey_has_distances_and_other_countries_for_reference(steered_run: Path) -> None:
    run = with_config(read_steered(steered_run, THAI), "scpo_globalopinionqa")
    before, after = (
        row | {"distance": {"n": 7, "mean": mean, "ci95": [mean - 0.05, mean + 0.05]}}
        for row, mean in zip(run.figures["rows"], (0.4, 0.35), strict=True)
    )
    text = told(replace(run, figures={**run.figures, "drawn": "questions of the survey", "rows": [before, after]}))
    assert "7 questions: 0.350 [0.300, 0.400]; of the global reward model 0.400 [0.350, 0.450].\n\n## CARB" in text
    assert "which the mean of what other countries answered does not agree with" in text
    assert "15 % of the questions of the survey kept for testing" in text


def test_several_seeds_and_a_baseline_are_told(steered_run: Path) -> None:
    run = read_steered(steered_run, THAI)
    before, after = run.figures["rows"]
    after = after | {"seeds": {"n": 3, "overall": 0.0123, "minority": 0.0456}, "others": {"n": 0}}
    leg = replace(run.leg, plan=replace(run.leg.plan, variant="full", seed=2))
    text = told(replace(run, leg=leg, figures={**run.figures, "rows": [before, after]}))
    assert "as a baseline of Steerable Cultural Preference Optimization" in text
    assert "**Variant**: full fine-tuning." in text
    assert "seed 2\n" in text
    assert "means over\n3 trainings with other seeds, of which this is one; standard deviation over them: 1.2" in text
    assert "4.6 (minority view)" in text
    assert "| all other countries of the run | 0 | none | none | none |" in text
    assert "How it does on pairs of other countries was not measured." in text


def test_carb_of_an_evaluation_of_these_weights(steered: Path, tmp_path: Path) -> None:
    model = steered / "models" / THAI
    evaluation = write_evaluation(tmp_path / "elsewhere", model, kind="classifier")
    push = prepare(steered, REPO, model=THAI, evaluations=[evaluation])
    paths = {file.path for file in push.files}
    assert {"carb/elsewhere.json", "probes/elsewhere.json"} <= paths
    assert ".eval_results/carb.yaml" not in paths  # its data is not on the Hub
    assert "### elsewhere: the culture cards" in card_of(steered, evaluation)
    with pytest.raises(DataError, match="no reward model in it that was measured has the weights of"):
        prepare(steered, REPO, model="EG/scpo-seed-0", evaluations=[evaluation])


@pytest.mark.parametrize("model", [None, "TH", "TH/full-seed-0", "../models/TH/scpo-seed-0", "TH/scpo-seed-0/"])
def test_which_of_its_models_has_to_be_said(steered_run: Path, model: str | None) -> None:
    with pytest.raises(ConfigError, match=r"--model: got .*keeps: EG/scpo-seed-0, TH/scpo-seed-0"):
        prepare(steered_run, REPO, model=model)


def test_what_cannot_be_pushed_is_said(steered: Path, run: Path) -> None:
    with pytest.raises(DataError, match=r"no scpo.json; --model chooses a reward model of an SCPO run that ended"):
        prepare(run, REPO, model=THAI)
    with pytest.raises(ConfigError, match="adapters merged into them: push without --adapter"):
        prepare(steered, REPO, model=THAI, adapter=True)
    figures = json.loads((steered / "scpo.json").read_text())
    _write(steered / "scpo.json", {**figures, "rows": figures["rows"][:3]})
    with pytest.raises(DataError, match=r"scpo.json: has no row of TH for scpo"):
        prepare(steered, REPO, model=THAI)
    _write(steered / "scpo.json", {"rows": []})
    with pytest.raises(DataError, match=r"scpo.json: lacks dataset, differences, drawn"):
        prepare(steered, REPO, model=THAI)
    (steered / "legs" / THAI / "leg.json").unlink()
    with pytest.raises(DataError, match="no record of a training in legs/TH/scpo-seed-0"):
        prepare(steered, REPO, model=THAI)


@pytest.mark.parametrize("linked", ["models", "models/TH", f"models/{THAI}", f"models/{THAI}/model.safetensors"])
def test_links_are_not_followed(steered: Path, tmp_path: Path, linked: str) -> None:
    (steered / linked).rename(tmp_path / "elsewhere")
    (steered / linked).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="links do not count"):
        prepare(steered, REPO, model=THAI)


def test_no_secret_and_no_place_leaves(steered: Path) -> None:
    path = steered / "models" / THAI / "config.json"
    config = json.loads(path.read_text())
    for planted, kind in ((str(steered / "global_rm"), "a path of the run"), ("hf_" + "aB3" * 12, "a Hugging Face")):
        _write(path, {**config, "note": planted})
        with pytest.raises(LeakError, match=f"config.json: {kind}"):
            prepare(steered, REPO, model=THAI)


def test_a_repository_of_a_judge_becomes_one_of_a_reward_model(
    run: Path, steered_run: Path, hub: FakeHub, api: HfApi
) -> None:
    for files in (prepare(run, REPO).files, prepare(steered_run, REPO, model=THAI).files):
        upload(files, REPO, public=False, update=True, revision=None, api=api)
    assert set(hub.repositories[REPO].files()) == FROM_MODEL | {"README.md", "scpo.json"}


def test_as_a_person_calls_it(
    steered_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def _percent(form: str, value: float, part: dict[str, Any]) -> str:
    return form.format(*(100 * number for number in (value, *part["ci95"])))


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value))
