"""An SCPO run: its files and metrics, and that nothing is lost if it is killed or asked to stop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
import yaml
from conftest import ROOT, command
from data.sources.test_prism import folder as prism_folder
from data.sources.test_prism import person, utterance
from data.tables import write
from reward_models.test_published import inf_orm
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
)

from think_as_locals import steer as steering
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.data import Splits, read
from think_as_locals.data.sources.prism import released_test_people
from think_as_locals.data.splits import split_people
from think_as_locals.evaluation.journal import content_key
from think_as_locals.reward_models.scalar import ScalarRM
from think_as_locals.reward_models.training_items import item_hash, read_training_items
from think_as_locals.run import start
from think_as_locals.scpo import trainer as scpo_trainer
from think_as_locals.scpo.results import VariantResult, fitting_requests, read_result, score_responses
from think_as_locals.scpo.select import minority_ids, select_pairs
from think_as_locals.scpo.trainer import make_trainer
from think_as_locals.types import ConfigError, DataError, Item, ModelError, RunStoppedError

pytestmark = pytest.mark.slow

RECIPE = "recipes/scpo_quickstart.yaml"
FEW = [
    'data.countries=["TH","JP"]',
    "data.groups=[greeting_gesture,gift_taboo,everyday_breakfast]",
    "eval.bootstrap_samples=100",
    "scpo.scoring_batch_size=256",
]
SMALL = [
    *(*FEW, 'data.countries=["TH","JP","DE"]'),
    *("global_rm.max_steps=80", "global_rm.batch_size=32", "global_rm.per_device_train_batch_size=32"),
    *("global_rm.logging_steps=20", "scpo.variants=[full,scpo]", "scpo.max_steps=20", "scpo.logging_steps=5"),
    *("scpo.learning_rate=0.003", "scpo.seeds=[0]"),
]
SCPO_ONLY = ["scpo.variants=[scpo]", "scpo.seeds=[0]"]
QUICK = [*SCPO_ONLY, "scpo.max_steps=3"]


def steer(folder: Path, *overrides: str, recipe: str = RECIPE) -> Path:
    """A run, in this process."""
    start(recipe, [*overrides, f"run.dir={folder}", "run.name=run"])
    return folder / "run"


def found(run: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run / "scpo.json").read_text(encoding="utf-8"))
    return result


def row(run: Path, country: str, variant: str, num_pairs: int | None = None) -> dict[str, Any]:
    wanted = (country, variant, num_pairs)
    (match,) = (r for r in found(run)["rows"] if (r["country"], r["variant"], r["num_pairs"]) == wanted)
    return dict(match)


def config_of(run: Path) -> ScpoConfig:
    return ScpoConfig.model_validate(yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8")))


def scores_of(run: Path) -> dict[str, float]:
    """What the global RM scores every response."""
    lines = (run / "global_rm" / "scores" / "rank-0.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    return {line["key"]: line["answer"]["score"] for line in map(json.loads, lines)}


def splits_of(run: Path) -> Splits:
    config = config_of(run)
    return split_people(read(config.data, config.seed), config.data.test_share, config.seed, by_country=True)


def result_of(run: Path, name: str) -> VariantResult:
    result = read_result(run / "variants" / name)
    assert result is not None
    return result


def pair_scores(item: Item, scores: dict[str, float]) -> tuple[float, float]:
    chosen, rejected = (scores[content_key(item.prompt, item.responses[i])] for i in (item.best, 1 - item.best))
    return chosen, rejected


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return steer(tmp_path_factory.mktemp("small"), *SMALL)


@pytest.fixture(scope="module")
def loaded(small: Path) -> list[str]:
    """Overrides with which the small run's global RM is loaded and steered again."""
    return [*FEW, "model.scratch=null", f"model.path={small / 'global_rm' / 'model'}", "global_rm=none"]


# --- what a run leaves behind ---


def test_run_writes_results_models_and_their_training_pairs(small: Path) -> None:
    there = {path.name for path in small.iterdir() if not path.name.startswith(".")}
    assert there == {
        *("config.yaml", "environment.json", "workers.json", "metrics.jsonl", "global_rm", "variants", "models"),
        *("scpo.json", "scpo.md", "report.html", "items.sha256"),
    }
    variants = [f"{name}-seed-0" for name in ("full", "scpo")]
    names = {(country, name) for country in ("DE", "JP", "TH") for name in variants}
    assert {path.parent.parts[-2:] for path in small.glob("variants/*/*/result.json")} == names
    assert {path.name for path in small.glob("variants/*/*/*")} == {"result.json", "scores.parquet"}
    assert {path.parts[-2:] for path in small.glob("models/*/*")} == {n for n in names if n[1] == "scpo-seed-0"}
    page = (small / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?https?:|url\(\s*["']?https?:|@import""", page)
    assert (found(small)["differences"], found(small)["mode"]["name"]) == ([], "corrected")
    hashes = {item_hash(item) for item in splits_of(small).train}
    for model in (small / "global_rm" / "model", small / "models" / "TH" / "scpo-seed-0"):
        assert read_training_items(str(model)) == hashes, model


def test_variants_train_on_pairs_selected_by_global_rm_scores(small: Path) -> None:
    config, scores, splits = config_of(small), scores_of(small), splits_of(small)
    pairs = [*splits.train, *splits.test]
    assert set(scores) == {content_key(item.prompt, text) for item in pairs for text in item.responses}
    mine = [item for item in splits.train if item.culture == "TH"]
    for variant in ("full", "scpo"):
        expected = select_pairs([pair_scores(item, scores) for item in mine], variant, config.scpo, config.mode)
        result = result_of(small, f"TH/{variant}-seed-0")
        assert (result.available, result.kept) == (len(mine), len(expected))
        assert result.mean_weight == pytest.approx(fmean(expected.values()))
        assert (result.mean_weight == 1) == (variant == "full")
    assert 0 < row(small, "TH", "scpo")["training"]["kept"] < 1


def test_accuracies_match_the_recorded_scores(small: Path) -> None:
    config, scores, splits = config_of(small), scores_of(small), splits_of(small)
    few = minority_ids({item.id: pair_scores(item, scores) for item in splits.test}, config.scpo, config.mode)
    assert found(small)["minority_share"] == pytest.approx(len(few) / len(splits.test))
    table = parquet.read_table(small / "variants" / "JP" / "scpo-seed-0" / "scores.parquet").to_pydict()
    steered = dict(zip(table["response"], table["score"], strict=True))
    for by, variant in ((scores, "global"), (steered, "scpo")):
        margins = {item: next(a - b for a, b in [pair_scores(item, by)]) for item in splits.test}
        right = {item.id: 0.5 * (1 + (margin > 0) - (margin < 0)) for item, margin in margins.items()}
        own = [item.id for item in splits.test if item.culture == "JP"]
        theirs = [item.id for item in splits.test if item.culture != "JP"]
        figures = row(small, "JP", variant)
        for name, ids in (("overall", own), ("minority", [i for i in own if i in few]), ("others", theirs)):
            assert figures[name]["n"] == len(ids)
            assert figures[name]["accuracy"] == pytest.approx(sum(right[i] for i in ids) / len(ids))


def test_minority_accuracy_rises_without_loss_of_overall_accuracy(small: Path) -> None:
    before, after = (next(m for m in found(small)["means"] if m["variant"] == v) for v in ("global", "scpo"))
    assert after["minority"]["gain"]["mean"] > 0.05
    assert after["overall"]["accuracy"] > before["overall"]["accuracy"] - 0.02
    assert sum(row(small, country, "scpo")["minority"]["gain"]["mean"] > 0 for country in ("DE", "JP", "TH")) >= 2


def test_saved_model_reproduces_the_recorded_scores(small: Path, tmp_path: Path) -> None:
    model = small / "models" / "TH" / "scpo-seed-0"
    result = result_of(small, "TH/scpo-seed-0")
    test = splits_of(small).test[:20]
    for item, scores in zip(test, ScalarRM.load(str(model)).score(test), strict=True):
        recorded = [result.scores[content_key(item.prompt, text)] for text in item.responses]
        assert scores == pytest.approx(recorded, abs=1e-5)
    where = ["data=opinion_cards", FEW[0], FEW[1], "eval.max_items=60", "eval.bootstrap_samples=100"]
    run = steer(tmp_path, *where, "rms.x=classifier", f"rms.x.path={model}", recipe="recipes/carb.yaml")
    assert json.loads((run / "carb" / "x.json").read_text(encoding="utf-8"))["n"] == 60


# --- killed, or asked to stop ---

INTERRUPTED = [*FEW, *SCPO_ONLY, "global_rm.max_steps=20", "scpo.max_steps=20", "scpo.save_steps=3"]
LOGGED = ["scpo.logging_steps=1", "global_rm.logging_steps=1"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return steer(tmp_path_factory.mktemp("uninterrupted"), *INTERRUPTED, *LOGGED)


def test_stopped_and_killed_run_resumes_to_identical_results(
    uninterrupted: Path, tmp_path: Path, warm_python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [*INTERRUPTED, *LOGGED, f"run.dir={tmp_path}", "run.name=run"]
    metrics, result = tmp_path / "run" / "metrics.jsonl", tmp_path / "run" / "scpo.json"
    number: signal.Signals
    for number, stage, status in ((signal.SIGTERM, "global_rm", 75), (signal.SIGKILL, "JP/scpo-seed-0", -9)):
        process = subprocess.Popen(
            [command("tal", warm_python), "run", RECIPE, *overrides],
            cwd=ROOT,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = f'"stage": "{stage}", "step": 5'
        wait_for(lambda line=line: metrics.is_file() and line in metrics.read_text(), process)  # type: ignore[misc]
        process.send_signal(number)
        _, message = process.communicate(timeout=100)
        assert process.returncode == status
        assert not result.exists()
        if number == signal.SIGTERM:
            saved = r"run was asked to stop and has saved after step \d+ of global_rm: repeat the command with"
            assert re.search(saved, message)
            overrides.append("run.resume=auto")
    start(RECIPE, overrides)
    trained = re.findall(r"([\d,]+) of ([\d,]+) are trained", capsys.readouterr().err)  # where no bar is shown
    assert [int(number) for number, _ in trained] == list(range(1, len(trained) + 1))
    assert trained[-1][0] == trained[-1][1]
    assert result.read_bytes() == (uninterrupted / "scpo.json").read_bytes()
    for path in uninterrupted.glob("models/*/*/model.safetensors"):
        assert path.read_bytes() == (tmp_path / "run" / path.relative_to(uninterrupted)).read_bytes()
    assert steps(metrics) == steps(uninterrupted / "metrics.jsonl")


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def steps(metrics: Path) -> list[tuple[str, int, float]]:
    """What was logged, without what depends on time."""
    logs = map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
    return [(log["stage"], log["step"], log["loss"]) for log in logs if "loss" in log]


def test_resume_moves_a_finished_model_without_retraining(uninterrupted: Path) -> None:
    kept, folder = uninterrupted / "models" / "TH" / "scpo-seed-0", uninterrupted / "variants" / "TH" / "scpo-seed-0"
    result, metrics = ((uninterrupted / name).read_bytes() for name in ("scpo.json", "metrics.jsonl"))
    kept.rename(folder / "model")
    (folder / "scores").mkdir()
    (uninterrupted / "scpo.json").unlink()
    steer(uninterrupted.parent, *INTERRUPTED, *LOGGED, "run.resume=auto")
    assert (kept / "model.safetensors").is_file()
    assert {path.name for path in folder.iterdir()} == {"result.json", "scores.parquet"}
    assert (uninterrupted / "metrics.jsonl").read_bytes() == metrics
    assert (uninterrupted / "scpo.json").read_bytes() == result


# --- other ways to steer ---


def test_trained_models_are_freed_and_shuffled_labels_mostly_kept(
    loaded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[torch.nn.Module]] = []
    alive: list[int] = []

    def make(*args: Any, **settings: Any) -> Any:
        trainer = make_trainer(*args, **settings)
        made.append(weakref.ref(trainer.model))
        return trainer

    def score(*args: Any) -> dict[str, float]:
        alive.append(sum(model() is not None for model in made))
        return score_responses(*args)

    monkeypatch.setattr(scpo_trainer, "make_trainer", make)
    monkeypatch.setattr(steering, "score_responses", score)
    run = steer(tmp_path, *loaded, *QUICK, "data.shuffle_labels=true", "eval.max_items=50")
    assert len(made) == 2
    assert alive == [0, 0, 0]  # the global RM first
    assert found(run)["n"] == 50
    kept = row(run, "TH", "scpo")["training"]["kept"]
    assert kept > 0.55  # the global RM disagrees with about half of random labels, and is unsure about some others


def test_global_rm_from_scratch_trains_all_weights_also_with_lora(tmp_path: Path) -> None:
    run = steer(tmp_path, *FEW, *QUICK, "global_rm.max_steps=2", "scpo.max_steps=1", "lora=rank16")
    before, after = (load_file(run / "global_rm" / name / "model.safetensors") for name in ("untrained", "model"))
    assert not [name for name in before if torch.equal(before[name], after[name])]
    steered = load_file(run / "models" / "TH" / "scpo-seed-0" / "model.safetensors")
    assert torch.equal(after["model.embed_tokens.weight"], steered["model.embed_tokens.weight"])


def test_lora_trains_adapter_and_head_and_saves_a_merged_model(
    small: Path, loaded: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = steer(tmp_path, *loaded, *SCPO_ONLY, "scpo.max_steps=5", "scpo.logging_steps=5", "lora=rank16", "lora.r=4")
    assert re.search(r"TH/scpo-seed-0 5/5  loss .*  pairs right ", capsys.readouterr().err)  # no model from scratch
    before = load_file(small / "global_rm" / "model" / "model.safetensors")
    after = load_file(run / "models" / "TH" / "scpo-seed-0" / "model.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert before.keys() == after.keys()
    assert "score.weight" in changed
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in changed} >= {"q_proj", "down_proj", "score"}
    assert not [name for name in changed if "embed" in name or "norm" in name]
    result = result_of(run, "TH/scpo-seed-0")
    assert result.steps == 5
    rm = ScalarRM.load(str(run / "models" / "TH" / "scpo-seed-0"))
    item = splits_of(run).test[0]
    keys = [content_key(item.prompt, text) for text in item.responses]
    assert rm.score([item])[0] == pytest.approx([result.scores[key] for key in keys], abs=1e-5)
    assert rm.score([item])[0] != pytest.approx([scores_of(run)[key] for key in keys], abs=1e-3)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert next(line for line in lines if "train_loss" in line)["train_loss"] > 0


def write_text_pair_rm(folder: Path) -> str:
    """A small BERT with one output, whose tokenizer reads words and has no chat template."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "what", "matters", "answer", ",", ".", "?"]
    vocabulary = {word: number for number, word in enumerate([*words, *map(str, range(10))])}
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=32, num_labels=1, **sizes)
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizerFast(vocab=vocabulary, model_max_length=32).save_pretrained(folder)
    return str(folder)


PRISM = ["model.requires_gpu=false", "eval.bootstrap_samples=50", "data.test_share=0.4"]


def a_prism(path: Path) -> Path:
    """Ten people of two countries, each with one interaction of three responses; one of them is too long."""
    users, rows = [], []
    for n in range(10):
        users.append(person(f"user{n}", *(("Chile", "CHL") if n % 2 else ("New Zealand", "NZL"))))
        for i in range(3):
            text = f"Answer {n} {i} ." * (1 + i) if (n, i) != (1, 2) else "matters " * 40
            rows.append(utterance(3 * n + i, 10 + 30 * i + n, user=f"user{n}", turn=n, model_response=text))
    path.mkdir()
    return prism_folder(path, users, rows)


def test_text_pair_model_trains_on_prism_and_counts_too_long_pairs(tmp_path: Path) -> None:
    model = write_text_pair_rm(tmp_path / "bert")
    where = [f"data.path={a_prism(tmp_path / 'prism')}", 'data.countries=["CL","NZ"]', f"model.path={model}"]
    overrides = [*QUICK, *where, *PRISM, "scpo.max_steps=2", "scpo.learning_rate=0.001"]
    run = steer(tmp_path, *overrides, recipe="recipes/scpo_prism.yaml")
    assert {r["country"] for r in found(run)["rows"]} == {"CL", "NZ"}
    assert found(run)["left_out"] == 2
    assert "2 training and test pairs are left out" in (run / "scpo.md").read_text(encoding="utf-8")
    available = [read_result(run / "variants" / country / "scpo-seed-0").available for country in ("CL", "NZ")]  # type: ignore[union-attr]
    assert sum(available) + found(run)["n"] == 30 - 2
    assert fitting_requests(ScalarRM.load(model), []) == []  # a rank that has nothing to score
    name = "bert.embeddings.token_type_embeddings.weight"
    after, before = (load_file(m / "model.safetensors")[name] for m in (run / "models/CL/scpo-seed-0", Path(model)))
    assert not torch.equal(after[1], before[1])  # what tells the response from the prompt was there, and is trained


def test_interrupted_scoring_with_dropout_resumes_identically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_text_pair_rm(tmp_path / "bert")
    monkeypatch.setattr(ScalarRM, "load", partial(ScalarRM.load, chunk_size=4))
    where = [f"data.path={a_prism(tmp_path / 'prism')}", 'data.countries=["CL"]', f"model.path={model}"]
    # The seed of which the released draw tests three of the five people.
    mode = ["mode=as_released", "seed=5", "scpo.filter_threshold=0.99", "scpo.scoring_batch_size=3"]
    overrides = [*QUICK, *where, *PRISM, *mode, "run.resume=auto"]
    whole = steer(tmp_path / "whole", *overrides, recipe="recipes/scpo_prism.yaml")
    released, summary = config_of(whole).mode, found(whole)
    modes = {"name": "as_released", "dropout": True, "probability": "exponentials", "split": "together"}
    assert modes.items() <= released.model_dump().items()
    assert len(summary["differences"]) == 9
    assert summary["means"][0]["disagreed"]["n"] == summary["means"][0]["minority"]["n"]
    assert row(whole, "CL", "scpo")["training"]["steps"] == 3
    tokenizer = json.loads((whole / "models/CL/scpo-seed-0/tokenizer.json").read_text())
    assert tokenizer["truncation"] is None  # cutting the training text leaves no trace in what is kept

    def cut_off(rm: ScalarRM, requests: Any, folder: Path, advance: Callable[[int, int], None]) -> dict[str, float]:
        def scored(more: int, total: int) -> None:
            advance(more, total)
            answers = (folder / "rank-0.jsonl").read_text(encoding="utf-8").count('"answer"')
            if rm.model.training and answers == 7:  # in the second chunk of 4, by batches of 3
                raise KeyboardInterrupt

        return score_responses(rm, requests, folder, scored)

    with monkeypatch.context() as patch:
        patch.setattr(steering, "score_responses", cut_off)
        with pytest.raises(RunStoppedError, match=r"repeat the command with run\.name=run run\.resume=auto"):
            steer(tmp_path / "cut", *overrides, recipe="recipes/scpo_prism.yaml")
    cut = steer(tmp_path / "cut", *overrides, recipe="recipes/scpo_prism.yaml")
    assert (cut / "scpo.json").read_bytes() == (whole / "scpo.json").read_bytes()
    first, second = (read_result(run / "variants" / "CL" / "scpo-seed-0") for run in (whole, cut))
    assert first == second


def write_deberta(folder: Path) -> str:
    """As `write_text_pair_rm`, with relative positions alone, as DeBERTa v3 has them."""
    write_text_pair_rm(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    relative = {"relative_attention": True, "position_biased_input": False, "pos_att_type": ["p2c", "c2p"]}
    config = DebertaV2Config(vocab_size=21, max_position_embeddings=32, num_labels=1, **sizes, **relative)
    DebertaV2ForSequenceClassification(config).save_pretrained(folder)
    return str(folder)


def test_released_mode_keeps_long_pairs_and_uses_its_own_test_split(tmp_path: Path) -> None:
    model, prism = write_deberta(tmp_path / "deberta"), a_prism(tmp_path / "prism")
    where = [f"data.path={prism}", 'data.countries=["CL","NZ"]', f"model.path={model}"]
    overrides = [*QUICK, *where, *PRISM, "scpo.max_steps=1"]
    run = steer(tmp_path / "released", *overrides, "mode=as_released", recipe="recipes/scpo_prism.yaml")
    assert (found(run)["left_out"], found(run)["n"]) == (0, 12)  # four people of ten, with three pairs each
    tested = released_test_people(str(prism), 0.4, 0)
    pairs = read(config_of(run).data, 0)
    for country in ("CL", "NZ"):
        own = [item for item in pairs if item.culture == country and item.group not in tested]
        assert result_of(run, f"{country}/scpo-seed-0").available == len(own)
    assert len(scores_of(run)) == 30
    shorter = steer(tmp_path / "corrected", *overrides, recipe="recipes/scpo_prism.yaml")
    assert found(shorter)["left_out"] == 2


def test_run_fails_if_all_pairs_are_too_long(loaded: list[str], tmp_path: Path) -> None:
    message = r"no pairs are left to train on: all are too long \(raise scpo\.max_length"
    for where, model in (("loaded", loaded), ("made", FEW)):
        with pytest.raises(DataError, match=message):
            steer(tmp_path / where, *model, *QUICK, "scpo.max_length=3")


def test_published_head_is_refused(tmp_path: Path) -> None:
    model, _ = inf_orm(tmp_path / "model")
    with pytest.raises(ModelError, match="SCPO trains plain classifiers"):
        steer(tmp_path, *FEW, *QUICK, "global_rm=none", "model.scratch=null", f"model.path={model}")


def test_other_countries_reference_yields_survey_distances(loaded: list[str], tmp_path: Path) -> None:
    options = ["Good", "Bad", "Neither", "DK/Refused"]
    shares = {"Thailand": [0.6, 0.2, 0.1, 0.1], "Japan": [0.2, 0.6, 0.1, 0.1], "Chile": [0.1, 0.8, 0.05, 0.05]}
    rows = [
        {"question": f"How is number {n}?", "options": options, "source": "GAS", "selections": shares}
        for n in range(10)
    ]
    data = write(tmp_path / "opinions.jsonl", [*rows, {**rows[0], "question": "What else?", "selections": "x"}])
    loaded = ["model.requires_gpu=false", *loaded[2:]]
    survey = [f"data.path={data}", 'data.countries=["TH","JP"]', "data.test_share=0.3", "scpo.learning_rate=0.001"]
    again = [*loaded, *SCPO_ONLY, *survey, "scpo.max_steps=10"]
    run = steer(tmp_path, *again, recipe="recipes/scpo_globalopinionqa.yaml")
    result = found(run)
    assert result["reference"] == "other_countries"
    # Thais prefer Good to Bad, Good to Neither and Bad to Neither: only the last as nine in ten others do.
    assert row(run, "TH", "scpo")["training"]["kept"] == pytest.approx(2 / 3)
    before, after = row(run, "TH", "global")["distance"], row(run, "TH", "scpo")["distance"]
    assert before["n"] == after["n"] == 3
    assert after["mean"] == pytest.approx(before["mean"] + after["gain"]["mean"])
    assert after["mean"] < before["mean"]
    assert result["others_distance"]["n"] == 6
    assert result["faulty_rows"] == 1
    assert "distance" in (run / "report.html").read_text(encoding="utf-8")
    write(data, [{**each, "selections": {**shares, "Chile": [0.05, 0.85, 0.05, 0.05]}} for each in rows])
    with pytest.raises(ConfigError, match="the data differ"):  # in shares, by which pairs are weighed
        steer(tmp_path, *again, "run.resume=auto", recipe="recipes/scpo_globalopinionqa.yaml")
