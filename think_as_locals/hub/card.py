"""Write the model card from the files in a run's folder, without guessing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from markupsafe import Markup

from think_as_locals.data.sources import SOURCES
from think_as_locals.evaluation import carb
from think_as_locals.evaluation.baselines import NAMES
from think_as_locals.evaluation.pages import templates
from think_as_locals.evaluation.tables import escape_markdown
from think_as_locals.hub.files import CARD, HubFile
from think_as_locals.hub.source_run import CarbResult, JudgeRun, ScalarRun, TrainedRun, hub_data
from think_as_locals.judging import prompt_digest
from think_as_locals.runtime.files import read_json
from think_as_locals.scpo.report import VARIANT_NAMES
from think_as_locals.types import GRAMMAR_PROMPTS

_LANGUAGE = re.compile(r"[a-z]{2,3}")


def model_card(run: JudgeRun | ScalarRun, repo: str, adapter: bool) -> HubFile:
    """Return the `README.md` of a repository, which holds a model or (`adapter`) only an adapter."""
    environment = templates(Path(__file__).parent).overlay(finalize=_escape)
    environment.filters = {**environment.filters, "hub_data": hub_data}
    environment.globals = {
        **environment.globals,
        "baseline_names": NAMES,
        "sources": SOURCES,
        "variant_names": VARIANT_NAMES,
        "prompt_digest": prompt_digest,
        "grammar_prompts": GRAMMAR_PROMPTS,
        "noncommercial": any("-NC" in SOURCES[d.source].about for d in run.config.data.sources.values()),
    }
    template = environment.get_template("card.md.jinja")
    results = [_result_facts(result, run) for result in run.results]
    facts = {"repo": repo, "run": run, "config": run.config, "adapter": adapter, "results": results}
    body = template.render(facts, judge=isinstance(run, JudgeRun))
    content = str(ModelCard(f"---\n{_metadata(run, adapter).to_yaml()}\n---\n\n{body}"))
    return HubFile(CARD, content.encode(), generated=True)


def _escape(value: object) -> object:
    """Escape text of users for markdown and HTML; the text of the templates is not escaped."""
    if type(value) is not str:
        return value
    printable = "".join(character for character in value if character.isprintable() or character.isspace())
    return Markup(escape_markdown(printable))  # noqa: S704


def _metadata(run: JudgeRun | ScalarRun, adapter: bool) -> ModelCardData:
    """Return the card's metadata, only with names that the Hub accepts."""
    languages = {tag for result in run.results for tag in result.summary["by_language"]}
    datasets = [data["id"] for section in run.config.data.sources.values() if (data := hub_data(section))]
    judge = isinstance(run, JudgeRun)
    kind = ["generative-reward-model", "llm-as-a-judge", "grpo"]
    if isinstance(run, ScalarRun):
        kind = ["scpo"] if run.result else []
    return ModelCardData(
        language=sorted(filter(_LANGUAGE.fullmatch, languages)) or None,
        license=run.licence,
        license_link="LICENSE" if run.licence == "other" else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation" if judge else "text-classification",
        base_model=run.base,
        base_model_relation=("adapter" if adapter else "finetune") if run.base else None,
        datasets=list(dict.fromkeys(datasets)) or None,
        tags=["think-as-locals", "reward-model", *kind],
    )


def _result_facts(result: CarbResult, run: TrainedRun) -> dict[str, Any]:
    summary, own = result.summary, list(run.config.data.sources.values())
    same_split = summary["split"] != "all" and summary["seed"] == run.config.seed
    held_out = isinstance(run, JudgeRun) and same_split and all(data in own for data in result.sources)
    return {
        "name": result.name,
        "summary": summary,
        "sources": result.sources,
        "trained_on": carb.trained_on_note(summary),
        "constant": carb.constant_note(summary),
        "maybe_seen": summary.get("trained_on") is None
        and not held_out
        and bool({s.source for s in own} & {s.source for s in result.sources}),
        "probes": read_json(result.probes) if result.probes else {},
    }
