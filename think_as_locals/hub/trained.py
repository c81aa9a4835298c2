"""What a run's folder says of the model that was trained in it. Nothing is guessed: what it does not say is `None`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from think_as_locals.data.places import hub_id
from think_as_locals.evaluation import carb
from think_as_locals.evaluation.judged import read_json
from think_as_locals.models.generative import SETTINGS_FILE, JudgeSettings
from think_as_locals.models.reward_model import weights
from think_as_locals.rm_schema import EvaluationConfig
from think_as_locals.schema import DataSection, RunConfig
from think_as_locals.scpo_schema import ScpoConfig
from think_as_locals.types import DataError

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_STEP = re.compile(r"step-(\d+)\.json")
Config = TypeVar("Config", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A CARB file about the model.

    Args:
        name: The step it was measured at, or the evaluation it was measured in.
        path: The file.
        summary: What it holds.
        data: Where its items came from.
        probes: What `probes.probe` found in the same evaluation; `None` where it was not probed.
    """

    name: str
    path: Path
    summary: dict[str, Any]
    data: DataSection
    probes: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """A finished run, and the model of it that is meant.

    Args:
        folder: Its folder.
        model: The model's folder in there.
        config: What it was started with.
        environment: Versions and git state.
        measurements: The last of its own, then those of evaluations.
        hours: Of all its processes together, over the stages that made the model; of one that was resumed only its last
            stretch.
        device: The kind of processor, or a GPU's name.
    """

    folder: Path
    model: Path
    config: RunConfig | ScpoConfig
    environment: dict[str, Any]
    measurements: tuple[Measurement, ...]
    hours: float | None
    device: str | None

    @property
    def base(self) -> str | None:
        """Hub id of the model it began with; `None` where that was made from nothing or lies on a machine."""
        path = self.config.model.path
        return path if path and _REPOSITORY.fullmatch(path) and not Path(path).exists() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRun(TrainedRun):
    """A run that trained a judge.

    Args:
        settings: What its judge must be asked with.
        steps: GRPO's optimizer steps.
    """

    config: RunConfig
    settings: JudgeSettings
    steps: int | None


def read_run(folder: Path, evaluations: Sequence[Path] = ()) -> JudgeRun:
    """Read what there is to say of a judge.

    Args:
        folder: Of a training run that ended.
        evaluations: Folders of evaluations that measured its `model/`.

    Raises:
        DataError: it is not such a folder, or an evaluation measured other weights; the message names the file.
    """
    model = folder / "model"
    if not (model / SETTINGS_FILE).is_file():
        raise DataError(f"{folder}: no model/{SETTINGS_FILE}; expected the folder of a training run that ended")
    config = configuration(folder, RunConfig)
    return JudgeRun(
        folder=folder,
        model=model,
        config=config,
        settings=JudgeSettings.load(str(model)),
        environment=known(folder / "environment.json"),
        measurements=measured(_own(folder, config), model, evaluations),
        steps=_summed_up(folder).get("grpo", {}).get("step"),
        **spent(folder, ("sft", "grpo")),
    )


def hub_data(data: DataSection) -> re.Match[str] | None:
    """The parts of a data set's Hub id (`id`, `revision`, `config`, `split`), where items were read from the Hub."""
    return hub_id(data.path) if data.path else None


def configuration(folder: Path, kind: type[Config]) -> Config:
    """What a run or an evaluation was started with.

    Raises:
        DataError: its `config.yaml` is not of this kind, or not of this version; the message shows no values.
    """
    path = folder / "config.yaml"
    try:
        return kind.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:  # its own message shows values, which may be anything
        reason = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = f"cannot be read ({type(error).__name__})"
    kinds = "an evaluation" if kind is EvaluationConfig else "a training run"
    raise DataError(f"{path}: not the configuration of {kinds} that this version knows: {reason}")


def measured(own: Sequence[Measurement], model: Path, evaluations: Sequence[Path]) -> tuple[Measurement, ...]:
    """What a run measured itself, and what evaluations say of a model's weights.

    Raises:
        DataError: an evaluation measured other weights, or two have one name.
    """
    found = (*own, *(_evaluated(evaluation, model) for evaluation in evaluations))
    if len({measurement.name for measurement in found}) < len(found):
        raise DataError(f"evaluations of one name, {', '.join(m.name for m in found)}: each needs its own run.name")
    return found


def known(path: Path) -> dict[str, Any]:
    """The contents of a JSON file; nothing where it is not there."""
    return read_json(path) if path.is_file() else {}


def _own(folder: Path, config: RunConfig) -> list[Measurement]:
    """The last measurement of the run itself."""
    steps = {int(found[1]): path for path in folder.glob("carb/*.json") if (found := _STEP.fullmatch(path.name))}
    return [Measurement(path.stem, path, carb.read(path), config.data) for path in [steps[max(steps)]]] if steps else []


def _evaluated(evaluation: Path, model: Path) -> Measurement:
    """What an evaluation says of these weights: its journals know them by names, sizes and times of their files."""
    config = configuration(evaluation, EvaluationConfig)
    here = weights(str(model), None)["files"]
    for journal in sorted(evaluation.glob("journals/*.jsonl")):
        identity = _identity(journal)
        asked = identity.get("model") or identity.get("weights") or {}  # of a judge, of a classifier
        path = evaluation / "carb" / f"{journal.stem}.json"
        if asked.get("files") == here and path.is_file():
            probes = evaluation / "probes" / path.name
            probed = probes if config.eval.probes and probes.is_file() else None
            return Measurement(config.run.name, path, carb.read(path), config.data, probed)
    raise DataError(f"{evaluation}: no reward model in it that was measured has the weights of {model}, file by file")


def spent(folder: Path, stages: Collection[str]) -> dict[str, Any]:
    """`hours` and `device` of what a run recorded of stages; `None` where it did not."""
    workers, ended = known(folder / "workers.json"), _summed_up(folder)
    seconds = [line["train_runtime"] for stage, line in ended.items() if stage in stages]
    hours = sum(seconds) * len(workers["ranks"]) / 3600 if seconds and workers else None
    return {"hours": hours, "device": workers.get("device")}


def _identity(journal: Path) -> dict[str, Any]:
    """Whose answers a journal holds; nobody's where it was torn before it said so."""
    with journal.open("rb") as lines:
        line = lines.readline()
    try:
        return dict(json.loads(line)["identity"]) if line.endswith(b"\n") else {}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{journal}: its first line does not say whose answers these are") from error


def _summed_up(folder: Path) -> dict[str, dict[str, Any]]:
    """The line of `metrics.jsonl` that ends each stage."""
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines() if path.is_file() else []
    try:
        logged = [json.loads(line) for line in lines if b'"train_runtime"' in line]
        return {line["stage"]: line for line in logged}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: a line with train_runtime cannot be read") from error
