"""The model card: what the model is, what it learnt from and what it was measured to be. Nothing in it is guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from think_as_locals.evaluation.judged import read_json
from think_as_locals.evaluation.markdown import text
from think_as_locals.evaluation.pages import language_name
from think_as_locals.evaluation.steering_report import NAMES
from think_as_locals.hub.contents import CARD, HubFile
from think_as_locals.hub.steered import SteeredRun
from think_as_locals.hub.trained import JudgeRun, Measurement, TrainedRun, hub_data
from think_as_locals.judging import prompt_digest
from think_as_locals.judging.render import culture_name
from think_as_locals.schema import DataSection

_LANGUAGE = re.compile(r"[a-z]{2,3}")
_DATA: Mapping[str, str] = {
    "culture_cards": "the culture cards of Think-as-Locals, written for that project (licence: Apache-2.0)",
    "opinion_cards": (
        "preferences of simulated people, made of the culture cards of Think-as-Locals; nobody was asked "
        "(licence: Apache-2.0)"
    ),
    "prism": "PRISM, arXiv 2404.16019 (licence: prompts CC-BY-4.0, responses CC-BY-NC-4.0)",
    "globalopinionqa": "GlobalOpinionQA, arXiv 2306.16388 (licence: CC-BY-NC-SA-4.0)",
    "blend": "BLEnD, arXiv 2406.09948 (licence: CC-BY-SA-4.0)",
    "helpsteer3": "HelpSteer3-Preference (licence: CC-BY-4.0)",
    "care": "CARE",
    "carb": "rows in the schema of CARB, arXiv 2509.21798",
    "carb_open": "open rows for CARB's domains",
    "rewardbench2": "RewardBench 2, arXiv 2506.01937",
    "pairs": "pairs of chosen and rejected responses",
    "jsonl": "items of its makers",
}
_SOURCES: Mapping[str, str] = {
    "consistency": "J1 (the reward `consistency`): arXiv 2505.10320",
    "length": "DAPO (the reward `length`): arXiv 2503.14476",
}
_PROBES: Mapping[str, str] = {
    "CC": "another culture's answer in place of the best",
    "RC": "without the culture's name",
    "CL": "in another language",
    "RP": "rephrased",
}


def card(run: JudgeRun | SteeredRun, repo: str, adapter: bool) -> HubFile:
    """The `README.md` of a repository.

    Args:
        run: What was trained.
        repo: Its Hub id, `owner/name`.
        adapter: Whether the repository holds a judge's adapter by itself.
    """
    if isinstance(run, JudgeRun):
        template, own = "judge.md.jinja", _of_judge(run, adapter)
    else:
        template, own = "steered.md.jinja", _of_steered(run)
    body = _templates().get_template(template).render(_facts(run, repo) | own)
    content = str(ModelCard(f"---\n{_metadata(run, adapter).to_yaml()}\n---\n\n{body}"))
    return HubFile(CARD, content.encode(), generated=True)


def _templates() -> Environment:
    """The templates beside this module: whatever text is put into it means nothing to markdown or HTML."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=lambda value: Markup(text(_printable(value))) if type(value) is str else value,  # noqa: S704
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"culture": culture_name, "language": language_name}
    return environment


def _printable(value: str) -> str:
    return "".join(character for character in value if character.isprintable() or character.isspace())


def _metadata(run: TrainedRun, adapter: bool) -> ModelCardData:
    """What the Hub reads: only names that it knows, or it refuses the card."""
    languages = {tag for measurement in run.measurements for tag in measurement.summary["by_language"]}
    data = hub_data(run.config.data)
    judge = ("generative-reward-model", "llm-as-a-judge", "grpo")
    return ModelCardData(
        language=sorted(filter(_LANGUAGE.fullmatch, languages)) or None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation" if isinstance(run, JudgeRun) else "text-classification",
        base_model=run.base,
        base_model_relation=("adapter" if adapter else "finetune") if run.base else None,
        datasets=[data["id"]] if data else None,
        tags=["think-as-locals", "reward-model", *(judge if isinstance(run, JudgeRun) else ("scpo",))],
    )


def _facts(run: TrainedRun, repo: str) -> dict[str, Any]:
    """What is told of any model."""
    source, data = run.config.data.source, hub_data(run.config.data)
    return {
        "repo": Markup(repo),  # noqa: S704 - `upload` lets only names of repositories through
        "run": run,
        "config": run.config,
        "base": _base(run),
        "data": _data(run.config.data),
        "data_id": data.group() if data else None,
        "licensed": "licence" in _DATA[source],
        "non_commercial": "-NC" in _DATA[source],
        "measured": [_measured(measurement, run) for measurement in run.measurements],
        "on_gpu": run.device not in (None, "cpu"),
    }


def _of_judge(run: JudgeRun, adapter: bool) -> dict[str, Any]:
    weighted = run.config.reward.weighted()
    return {
        "adapter": adapter,
        "digest": Markup(prompt_digest(run.settings.prompt)),  # noqa: S704 - hexadecimal
        "rewards": ", ".join(f"{weight:g} {name}" for name, weight in weighted.items()),
        "sources": [Markup(_SOURCES[name]) for name in weighted if name in _SOURCES],  # noqa: S704
    }


def _of_steered(run: SteeredRun) -> dict[str, Any]:
    config, keywords = run.config, run.config.model.chat_template_kwargs
    before, after = run.figures["rows"]
    of_others = config.scpo.reference == "other_countries"
    return {
        "leg": run.leg,
        "plan": run.leg.plan,
        "figures": run.figures,
        "before": before,
        "after": after,
        "variant": Markup(NAMES[run.leg.plan.variant]),  # noqa: S704 - ours
        "reference": "the mean of what other countries answered" if of_others else "the global reward model",
        "chat": (run.model / "chat_template.jinja").is_file(),
        "template_kwargs": Markup(repr(keywords)) if keywords else "",  # noqa: S704 - one line, in a block of code
    }


def _data(data: DataSection) -> Markup:
    return Markup(_DATA[data.source])  # noqa: S704 - ours


def _base(run: TrainedRun) -> str:
    if run.config.model.scratch is not None:
        return "none: made from nothing"
    if run.base is None:
        return "a local model, whose name is not told"
    return f"{run.base}, revision {run.config.model.revision or 'not recorded'}"


def _measured(measurement: Measurement, run: TrainedRun) -> dict[str, Any]:
    config = run.config
    summary, data = measurement.summary, hub_data(measurement.data)
    probed = read_json(measurement.probes) if measurement.probes else {}
    own = (config.data.split, config.seed, config.data)
    held_out = isinstance(run, JudgeRun) and (summary["split"], summary["seed"], measurement.data) == own
    return {
        "name": measurement.name,
        "summary": summary,
        "data": _data(measurement.data),
        "data_id": data.group() if data else None,
        "met": not held_out and measurement.data.source == config.data.source,
        "probes": [(name, edit, probed[name]) for name, edit in _PROBES.items() if name in probed],
    }
