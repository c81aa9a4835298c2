"""Folders as a training run and an evaluation leave them, around a small random judge."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from items import RUBRIC
from reward_models.tiny import ITEMS, write_language_model

from think_as_locals.config.checks import load_config, load_recipe
from think_as_locals.data.edits import edited_pairs
from think_as_locals.evaluation import carb
from think_as_locals.evaluation.journal import Journal
from think_as_locals.evaluation.probes import probe
from think_as_locals.hub.push import Push, prepare
from think_as_locals.judging import parse, shuffle_responses, write
from think_as_locals.reward_models.judge import JudgeSettings
from think_as_locals.reward_models.reward_model import ScoredItem, identify_weights
from think_as_locals.reward_models.scalar import ScalarRM
from think_as_locals.reward_models.training_items import save_training_items, training_hashes
from think_as_locals.runtime.files import write_json
from think_as_locals.runtime.run_folder import environment
from think_as_locals.types import Item

REPO = "people/judge"
SECONDS = {"sft": 1800.0, "grpo": 3600.0}
TRAINED_ON = ITEMS[:2]


def write_run(folder: Path, *overrides: str, device: str = "cpu") -> Path:
    """The folder of a training run on two processes."""
    write_language_model(folder / "model", seed=0)
    JudgeSettings(prompt="compact", seed=3, max_completion_length=8, dtype="float32").save(folder / "model")
    save_training_items(training_hashes(TRAINED_ON, None), folder / "model")
    write_config(folder, *overrides)
    write_json(folder / "environment.json", environment())
    write_json(folder / "workers.json", {"device": device, "ranks": [{}, {}]})
    logged = [{"stage": stage, "step": 30, "train_runtime": seconds} for stage, seconds in SECONDS.items()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logged))
    for step in (0, 30):
        _measure(folder / "carb" / f"step-{step}.json", ITEMS, step)
    return folder


def write_config(folder: Path, *overrides: str) -> None:
    """The configuration of a training run."""
    config = load_recipe("recipes/quickstart.yaml", [f"run.name={folder.name}", *overrides])
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(), sort_keys=False))


def write_evaluation(folder: Path, model: Path, *overrides: str, kind: str = "judge") -> Path:
    """The folder of an evaluation that measured and probed a judge or a classifier."""
    names = [f"run.name={folder.name}", "eval.probes=true", f"rms.mine={kind}", f"rms.mine.path={model}"]
    config = load_config("recipes/carb.yaml", [*names, *overrides])
    _measure(folder / "carb" / "mine.json", ITEMS[:6], step=0)
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(), sort_keys=False))
    mine = ScalarRM.load(str(model)).identity if kind == "classifier" else {"model": identify_weights(str(model), None)}
    identities = {"a-constant": {"kind": "constant"}, "mine": mine}
    for name, identity in identities.items():
        with Journal(folder / "journals" / f"{name}.jsonl", identity):
            pass
    (folder / "probes").mkdir()
    lengths = lambda items: [tuple(float(len(text)) for text in item.responses) for item in items]  # noqa: E731
    found = probe(ITEMS, edited_pairs(ITEMS), lengths, samples=100, seed=0)
    write_json(folder / "probes" / "mine.json", found)
    return folder


def _measure(path: Path, items: list[Item], step: int) -> None:
    """Write a CARB file of a judge that always chooses A."""
    judgements = [parse(write(RUBRIC, "So.", 0), len(item.responses), "stop") for item in items]
    predictions = [
        ScoredItem(item=item, presented=shuffle_responses(item, 3), judgement=judgement)
        for item, judgement in zip(items, judgements, strict=True)
    ]
    about = {"dataset": "culture_cards", "split": "pairing", "model": "judge", "seed": 0, "bootstrap_samples": 100}
    carb.save(predictions, path, step=step, **about)


def shard(model: Path) -> list[str]:
    """Divide the weights of a model into two files; the second is not yet there."""
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    (model / "model.safetensors").rename(model / names[0])
    write_json(model / "model.safetensors.index.json", {"weight_map": dict(zip("ab", names, strict=True))})
    return names


def content_of(push: Push) -> dict[str, bytes]:
    """Return the files of a push by path; of weights what is scanned."""
    return {file.path: file.text() for file in push.files}


def card_of(run: Path, *evaluations: Path, model: str | None = None) -> str:
    return content_of(prepare(run, REPO, model=model, evaluations=evaluations))["README.md"].decode()


def download(contents: Mapping[str, bytes | Path], folder: Path) -> Path:
    """Write the files of a repository into a folder."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.read_bytes() if isinstance(content, Path) else content)
    return folder


def refused(error: type[Exception], match: str, run: Path, repo: str = REPO, **options: Any) -> str:
    """The message with which a run is not prepared for a push."""
    with pytest.raises(error, match=match) as raised:
        prepare(run, repo, **options)
    return str(raised.value)
