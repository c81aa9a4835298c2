"""Read the folder of a finished run: how a model was trained, and its results; unknown facts are `None`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

from think_as_locals.config.checks import validate_as
from think_as_locals.config.model_schema import EvaluationConfig
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.config.schema import DataSection
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.data.rows import hub_id
from think_as_locals.data.sources import SOURCES
from think_as_locals.evaluation import carb
from think_as_locals.reward_models.judge import SETTINGS_FILE, JudgeSettings
from think_as_locals.reward_models.reward_model import identify_weights
from think_as_locals.runtime.files import read_json
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.scpo.results import GLOBAL, VariantResult, read_result
from think_as_locals.types import TEST, VALIDATION, ConfigError, DataError

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_FIGURES = "dataset mode differences filter_threshold weight_temperature reference resampled rows"
GLOBAL_RM = "global_rm"  # for `--model`; the stage that trains it has this name too
Config = TypeVar("Config", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class CarbResult:
    """A CARB result of the model, and the probes of the same evaluation."""

    name: str  # the step of the run (`step-30`), or the name of the evaluation
    path: Path
    summary: dict[str, Any]  # content of the file
    sources: tuple[DataSection, ...]  # of its items
    probes: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """A finished run and one model that was trained in it."""

    folder: RunFolder
    model: Path  # the model's folder
    config: RunConfig | ScpoConfig
    environment: dict[str, Any]  # versions and git state
    results: tuple[CarbResult, ...]  # the last of the run itself, then those of evaluations
    hours: float | None  # process-hours of the stages that trained the model; since the last resume of a stage
    device: str | None  # `cpu`, or a GPU's name
    parameters: int | None
    stated_licence: str | None = None  # of the weights: `tal push --license`

    @property
    def licence(self) -> str | None:
        """The Hub's id of the licence of the weights: as stated, or ours if model and data are ours."""
        if self.stated_licence:
            return self.stated_licence
        ours = all(SOURCES[data.source].outcomes is None for data in self.config.data.sources.values())  # cards
        return "apache-2.0" if ours and self.config.model.scratch else None

    @property
    def base(self) -> str | None:
        """Hub id of the base model; `None` if it was randomly initialised or loaded from a local folder."""
        path = self.config.model.path
        return path if path and _REPOSITORY.fullmatch(path) and not Path(path).exists() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRun(TrainedRun):
    """A run that trained a judge."""

    config: RunConfig
    settings: JudgeSettings
    steps: int | None  # of GRPO's optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarRun(TrainedRun):
    """A run that trained scalar reward models, and one of them."""

    config: ScpoConfig
    result: VariantResult | None  # None: the global RM
    # Its results. `rows` of a steered model: the global RM on its country, and the variant over seeds; of the global
    # RM: all test pairs, and those of each country.
    figures: dict[str, Any]


def read_judge_run(path: Path, evaluations: Sequence[Path] = ()) -> JudgeRun:
    """Read the run of a judge, with the results of evaluations of its `model/`."""
    folder = RunFolder(path)
    if not (folder.model / SETTINGS_FILE).is_file():
        raise DataError(f"{path}: no model/{SETTINGS_FILE}; expected the folder of a finished training run")
    config = _read_config(path, RunConfig)
    results = list(_own_results(folder, config))
    return JudgeRun(
        config=config,
        settings=JudgeSettings.load(str(folder.model)),
        steps=_stage_summaries(folder).get("grpo", {}).get("step"),
        **_common_facts(folder, folder.model, results, evaluations, ("sft", "grpo")),
    )


def read_scalar_run(path: Path, model: str | None, evaluations: Sequence[Path] = ()) -> ScalarRun:
    """Read a run of scalar reward models and one of them, with the results of evaluations of it.

    It is a steered one, e.g. `TH/scpo-seed-0`, or `global_rm`, the default for a run that steered none.
    """
    folder = RunFolder(path)
    if not folder.steering.is_file():
        raise DataError(
            f"{path}: no {folder.steering.name}; --model chooses a reward model of a finished SCPO run; a judge's run "
            "has one"
        )
    config, figures = _read_config(path, ScpoConfig), read_json(folder.steering)
    steered = [f"{found.parent.name}/{found.name}" for found in folder.steered_models.glob("*/*") if found.is_dir()]
    kept = [*sorted(steered), *([GLOBAL_RM] if folder.global_rm.model.is_dir() else [])]
    chosen = model if model or config.scpo.variants else GLOBAL_RM
    if chosen not in kept:
        got = "nothing" if model is None else repr(model)
        raise ConfigError(
            f"--model: got {got}, expected one of the reward models that {path} keeps: "
            f"{', '.join(kept) or 'none, see scpo.keep_models'}"
        )
    result = None if chosen == GLOBAL_RM else read_result(folder.variant(chosen).path)
    if chosen != GLOBAL_RM and result is None:
        raise DataError(f"{path}: no record of the training in variants/{chosen}")
    rows = [row for row in figures["rows"] if row["num_pairs"] is None]
    if result:
        rows = [row for row in rows if row["country"] == result.spec.country]
        rows = [row for name in (GLOBAL, result.spec.variant) for row in rows if row["variant"] == name]
    else:
        rows = [figures["means"][0], *(row for row in rows if row["variant"] == GLOBAL)]
    place = folder.steered_model(chosen) if result else folder.global_rm.model
    return ScalarRun(
        config=config,
        result=result,
        figures={key: figures[key] for key in _FIGURES.split()} | {"rows": rows},
        **_common_facts(folder, place, [], evaluations, {GLOBAL_RM, chosen}),
    )


def _own_results(folder: RunFolder, config: RunConfig) -> Iterator[CarbResult]:
    """Yield the run's last result on each set except the validation items."""
    for name in folder.evaluated_sets():
        steps = folder.evaluated_steps(name)
        if name == VALIDATION or not steps:
            continue
        found, own = steps[max(steps)], config.data.sources
        sets = config.eval.sets  # a single source has its own name among `own`
        sources = (sets[name].data,) if name in sets else (own[name],) if name != TEST else (*own.values(),)
        yield CarbResult(found.stem if name == TEST else f"{name}, {found.stem}", found, carb.read(found), sources)


def hub_data(data: DataSection) -> re.Match[str] | None:
    """Return the parts of a dataset's Hub id (`id`, `revision`, `config`, `split`); `None` for data not on the Hub."""
    return hub_id(data.path) if data.path else None


def _common_facts(
    folder: RunFolder, model: Path, results: Sequence[CarbResult], evaluations: Sequence[Path], stages: Collection[str]
) -> dict[str, Any]:
    """Return the fields of `TrainedRun` other than `config`."""
    results = (*results, *(each for evaluation in evaluations for each in _evaluation_results(evaluation, model)))
    names = [result.name.replace(", ", "-") for result in results]  # as their files are called
    if len(set(names)) < len(names):
        raise DataError(f"evaluations with the same name ({', '.join(names)}): each needs its own run.name")
    environment, workers = (read_json(path) if path.is_file() else {} for path in (folder.environment, folder.workers))
    seconds = [line["train_runtime"] for stage, line in _stage_summaries(folder).items() if stage in stages]
    return {
        "folder": folder,
        "model": model,
        "environment": environment,
        "results": results,
        "hours": sum(seconds) * len(workers["ranks"]) / 3600 if seconds and workers else None,
        "device": workers.get("device"),
        "parameters": workers.get("parameters"),
    }


def _read_config(folder: Path, kind: type[Config]) -> Config:
    """Read `config.yaml` of a run or an evaluation."""
    path = RunFolder(folder).config
    try:
        return validate_as(kind, yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError) as error:
        expected = "an evaluation" if kind is EvaluationConfig else "a training run"
        raise DataError(f"{path}: not the configuration of {expected} of this version: {error}") from error


def _evaluation_results(evaluation: Path, model: Path) -> list[CarbResult]:
    """Return the results of an evaluation for these weights, identified by names, sizes and times of their files.

    It may have evaluated them several times, e.g. by two protocols.
    """
    config = _read_config(evaluation, EvaluationConfig)
    files, found = identify_weights(str(model), None)["files"], dict[str, Path]()
    # By this key a judge's identity has them, and a classifier's: a judge's weights under a random head are no judge.
    key = "model" if (model / SETTINGS_FILE).is_file() else "weights"
    for journal in (run := RunFolder(evaluation)).journals():
        with journal.open(encoding="utf-8") as lines:
            line = lines.readline()
        identity = json.loads(line)["identity"] if line.endswith("\n") else {}  # half a line has no identity
        path = run.result("carb", journal.stem)
        if (identity.get(key) or {}).get("files") == files and path.is_file():
            found[journal.stem] = path
    if not found:
        raise DataError(f"{evaluation}: no reward model evaluated there has the weights of {model}, file by file")
    results = []
    for name, path in found.items():
        probes = run.result("probes", name)
        probed = probes if config.eval.probes and probes.is_file() else None
        title = config.run.name if len(found) == 1 else f"{config.run.name}, {name}"
        results.append(CarbResult(title, path, carb.read(path), (config.data,), probed))
    return results


def _stage_summaries(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """Return the last line of each stage in `metrics.jsonl`."""
    lines = folder.metrics.read_bytes().splitlines() if folder.metrics.is_file() else []
    logged = [json.loads(line) for line in lines if b'"train_runtime"' in line]
    return {line["stage"]: line for line in logged}
