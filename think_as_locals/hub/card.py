"""Write the model card and `.eval_results/` from what a run's folder says, without guesses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResultEntry, ModelCard, ModelCardData, eval_result_entries_to_yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from think_as_locals.config.schema import DataSection
from think_as_locals.evaluation.pages import language_name
from think_as_locals.evaluation.tables import escape_markdown
from think_as_locals.hub.files import CARD, RESULTS, HubFile
from think_as_locals.hub.source_run import CarbResult, JudgeRun, SteeredRun, TrainedRun, hub_data
from think_as_locals.judging import prompt_digest
from think_as_locals.judging.prompt import culture_name
from think_as_locals.runtime.files import read_json
from think_as_locals.scpo.report import VARIANT_NAMES

_LANGUAGE = re.compile(r"[a-z]{2,3}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DATA: Mapping[str, str] = {
    "culture_cards": "the culture cards of Think-as-Locals, written for that project (licence: Apache-2.0)",
    "opinion_cards": (
        "preferences of simulated people, generated from the culture cards of Think-as-Locals; nobody was asked "
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
    "jsonl": "the authors' own items",
}


def model_card(run: JudgeRun | SteeredRun, repo: str, adapter: bool) -> HubFile:
    """Return the `README.md` of a repository; `adapter`: it holds a judge's adapter alone."""
    environment = Environment(  # text from outside means nothing to markdown or HTML
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=lambda value: Markup(escape_markdown(_printable(value))) if type(value) is str else value,  # noqa: S704
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"culture": culture_name, "language": language_name}
    if isinstance(run, JudgeRun):
        template, facts = "judge.md.jinja", _judge_facts(run, adapter)
    else:
        template, facts = "steered.md.jinja", _steered_facts(run)
    body = environment.get_template(template).render(_common_facts(run, repo) | facts)
    content = str(ModelCard(f"---\n{_metadata(run, adapter).to_yaml()}\n---\n\n{body}"))
    return HubFile(CARD, content.encode(), generated=True)


def _printable(value: str) -> str:
    return "".join(character for character in value if character.isprintable() or character.isspace())


def _metadata(run: TrainedRun, adapter: bool) -> ModelCardData:
    """Return the card's metadata, with names that the Hub knows: it refuses others."""
    languages = {tag for result in run.results for tag in result.summary["by_language"]}
    data = hub_data(run.config.data)
    judge = isinstance(run, JudgeRun)
    return ModelCardData(
        language=sorted(filter(_LANGUAGE.fullmatch, languages)) or None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation" if judge else "text-classification",
        base_model=run.base,
        base_model_relation=("adapter" if adapter else "finetune") if run.base else None,
        datasets=[data["id"]] if data else None,
        tags=[
            *("think-as-locals", "reward-model"),
            *(("generative-reward-model", "llm-as-a-judge", "grpo") if judge else ("scpo",)),
        ],
    )


# In all that follows, Markup is text of ours, which needs no escaping.


def _common_facts(run: TrainedRun, repo: str) -> dict[str, Any]:
    config = run.config
    if config.model.scratch is not None:
        base = "none: randomly initialised"
    elif run.base is None:
        base = "a local model, whose name is not published"
    else:
        base = f"{run.base}, revision {config.model.revision or 'not recorded'}"
    return {
        "repo": Markup(repo),  # noqa: S704 - `prepare` has checked it
        "run": run,
        "config": config,
        "base": base,
        **_data_facts(config.data),
        "licensed": "licence" in _DATA[config.data.source],
        "non_commercial": "-NC" in _DATA[config.data.source],
        "results": [_result_facts(result, run) for result in run.results],
        "on_gpu": run.device not in (None, "cpu"),
    }


def _judge_facts(run: JudgeRun, adapter: bool) -> dict[str, Any]:
    digest = Markup(prompt_digest(run.settings.prompt))  # noqa: S704
    return {"adapter": adapter, "digest": digest, "rewards": run.config.reward.weighted()}


def _steered_facts(run: SteeredRun) -> dict[str, Any]:
    config, keywords = run.config, run.config.model.chat_template_kwargs
    before, after = run.figures["rows"]
    other_countries = config.scpo.reference == "other_countries"
    return {
        "result": run.result,
        "spec": run.result.spec,
        "figures": run.figures,
        "before": before,
        "after": after,
        "variant": Markup(VARIANT_NAMES[run.result.spec.variant]),  # noqa: S704
        "reference": "the mean of other countries' answers" if other_countries else "the global reward model",
        "chat": (run.model / "chat_template.jinja").is_file(),
        "template_kwargs": Markup(repr(keywords)) if keywords else "",  # noqa: S704 - one line, in a block of code
    }


def _data_facts(data: DataSection) -> dict[str, Any]:
    hub = hub_data(data)
    return {"data": Markup(_DATA[data.source]), "data_id": hub.group() if hub else None}  # noqa: S704


def _result_facts(result: CarbResult, run: TrainedRun) -> dict[str, Any]:
    config, summary = run.config, result.summary
    same_split = (summary["split"], summary["seed"], result.data) == (config.data.split, config.seed, config.data)
    held_out = isinstance(run, JudgeRun) and same_split
    return {
        "name": result.name,
        "summary": summary,
        **_data_facts(result.data),
        "maybe_seen": not held_out and result.data.source == config.data.source,
        "probes": read_json(result.probes) if result.probes else {},
    }


def eval_results(results: Sequence[CarbResult]) -> list[HubFile]:
    """Return `.eval_results/carb.yaml`, which the Hub shows beside a model; nothing if no result is on data of the Hub.

    Each entry names the dataset on the Hub that it was measured on, see https://huggingface.co/docs/hub/eval-results.
    """
    entries = [entry for result in results if (entry := _eval_result(result))]
    if not entries:
        return []
    content = yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True, width=120)
    return [HubFile(RESULTS, content.encode(), generated=True)]


def _eval_result(result: CarbResult) -> EvalResultEntry | None:
    data, summary = hub_data(result.data), result.summary
    if data is None:
        return None
    revision = data["revision"]
    low, high = (100 * end for end in summary["ci95"])
    return EvalResultEntry(
        dataset_id=data["id"],
        task_id=data["config"] or "default",  # the dataset's configuration
        value=round(100 * summary["accuracy"], 2),
        dataset_revision=revision if revision and _COMMIT.fullmatch(revision) else None,
        notes=(
            f"Accuracy in per cent, n={summary['n']}, 95 % interval {low:.1f} to {high:.1f}; {summary['protocol']}; "
            f"items: {summary['split']}; parse failures {100 * summary['parse_failure']:.1f} %"
        ),
    )
