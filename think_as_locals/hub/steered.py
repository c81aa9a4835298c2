"""What the folder of an SCPO run says of one of the reward models that were steered in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from think_as_locals.evaluation.judged import read_json
from think_as_locals.evaluation.legs import Leg, read_leg
from think_as_locals.evaluation.steering_results import GLOBAL
from think_as_locals.hub.trained import TrainedRun, configuration, known, measured, spent
from think_as_locals.scpo_schema import ScpoConfig
from think_as_locals.types import ConfigError, DataError

FIGURES = "scpo.json"
"""Where a run has the figures of all its reward models, and a repository those of the one that it holds."""

_KEYS = ("dataset", "mode", "differences", "filter_threshold", "weight_temperature", "reference", "drawn", "rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeredRun(TrainedRun):
    """An SCPO run, and the reward model of it that is meant.

    Args:
        leg: How it was trained.
        figures: Of the run's `scpo.json` what is about the country: `rows` are two, that of the global reward model
            and that of the variant, whose figures are means over seeds.
    """

    config: ScpoConfig
    leg: Leg
    figures: dict[str, Any]


def read_steered(folder: Path, model: str | None, evaluations: Sequence[Path] = ()) -> SteeredRun:
    """Read what there is to say of a steered reward model.

    Args:
        folder: Of an SCPO run that ended.
        model: Which of its reward models, e.g. `TH/scpo-seed-0`.
        evaluations: Folders of evaluations that measured it.

    Raises:
        ConfigError: the run keeps no such reward model; the message lists those that it keeps.
        DataError: it is not such a folder, or an evaluation measured other weights; the message names the file.
    """
    if not (folder / FIGURES).is_file():
        raise DataError(
            f"{folder}: no {FIGURES}; --model chooses a reward model of an SCPO run that ended (a judge's run has one)"
        )
    kept = sorted(f"{path.parent.name}/{path.name}" for path in folder.glob("models/*/*") if path.is_dir())
    if model is None or model not in kept:
        got = "nothing" if model is None else repr(model)
        raise ConfigError(
            f"--model: got {got}, expected one of the reward models that {folder} keeps: "
            f"{', '.join(kept) or 'none, see scpo.keep_models'}"
        )
    leg = read_leg(folder / "legs" / model)
    if leg is None:
        raise DataError(f"{folder}: no record of a training in legs/{model}")
    path = folder / "models" / model
    return SteeredRun(
        folder=folder,
        model=path,
        config=configuration(folder, ScpoConfig),
        environment=known(folder / "environment.json"),
        measurements=measured((), path, evaluations),
        leg=leg,
        figures=_figures(folder / FIGURES, leg),
        **spent(folder, ("global_rm", model)),
    )


def _figures(path: Path, leg: Leg) -> dict[str, Any]:
    found = read_json(path)
    if lacks := sorted(set(_KEYS) - set(found)):
        raise DataError(f"{path}: lacks {', '.join(lacks)}")
    rows = {
        row["variant"]: row for row in found["rows"] if row["country"] == leg.plan.country and row["num_pairs"] is None
    }
    if missing := sorted({GLOBAL, leg.plan.variant} - set(rows)):
        raise DataError(f"{path}: has no row of {leg.plan.country} for {', '.join(missing)}")
    return {key: found[key] for key in _KEYS} | {"rows": [rows[GLOBAL], rows[leg.plan.variant]]}
