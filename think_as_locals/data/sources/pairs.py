"""Rows of two responses, chosen and rejected, or A and B with a preference: RewardBench, M-RewardBench, your own."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, Field

from think_as_locals.data.fields import (
    Culture,
    Identifier,
    Language,
    Prompt,
    Response,
    RowModel,
    Text,
    check_conversation,
    check_text,
    field,
    question_group,
)
from think_as_locals.data.rows import Defect, Fault, Outcome, Row
from think_as_locals.types import shown

_PREFERRED = {
    **{f"{prefix}{label}": label for label in "ab" for prefix in ("", "response_", "answer_", "model_")},
    **dict.fromkeys(("tie", "both", "neither", "same", "tie (bothbad)"), "tie"),
}


def _check_prompt(name: str, value: Any, faults: list[Fault]) -> str:
    check = check_conversation if isinstance(value, list) else partial(check_text, blank=Defect.EMPTY_PROMPT)
    return check(name, value, faults)


class _OwnRow(RowModel):
    """The optional fields of rows of two responses."""

    DEFAULTS: ClassVar = ("culture", "language", "domain")
    prompt: Annotated[str, field(_check_prompt, "")]
    culture: Culture = Field(None, validation_alias=AliasChoices("culture", "country"))
    language: Language = "en"
    domain: Text = Field("pairs", validation_alias=AliasChoices("domain", "subset"))
    id: Identifier = ""
    group: Identifier = ""

    def pair(self, source: str, better: str, worse: str) -> Outcome:
        """Return the outcome of a pair."""
        key = f"{self.domain}/{self.id}" if self.id else ""
        name = f"{source}/{self.language}/{key}" if key else f"{source}/{self.row.name}"
        group = self.group or key or question_group(self.prompt)
        return self.outcome(*self.best_first(better, [worse], id=name, group=group, source=source))


class PairRow(_OwnRow):
    """RewardBench (arXiv 2403.13787, HF allenai/reward-bench), or any chosen and rejected; English if they do not say.

    The culture is an ISO 3166 code (`TH`, `CA-QC`), a country's name, or a free name ("Quebec"). The domain may also be
    called `subset`, as in RewardBench. Rows with the same `group` ask the same question; without one, rows with the
    same id in one domain, e.g. translations; without both, rows with the same prompt. Texts may be conversations as in
    TRL: the last messages of chosen and rejected are the responses.
    """

    FIELDS: ClassVar = ("prompt", "chosen", "rejected")
    IGNORED_COLUMNS: ClassVar = ("chosen_model", "rejected_model")
    chosen: Response
    rejected: Response


def last_turns(row: Row) -> Row:
    """Split two conversations into a prompt and responses, their last messages.

    Conversations that differ before their last messages answer different prompts: they are left as they are, a fault.
    """
    match row.value:
        case {
            "chosen": [*turns, {"role": "assistant", "content": chosen}],
            "rejected": [*others, {"role": "assistant", "content": rejected}],
        } if turns == others:
            prompt = {"prompt": turns} if len(turns) > 1 or (turns and row.value.get("prompt") is None) else {}
            return row._replace(value={**row.value, **prompt, "chosen": chosen, "rejected": rejected})
    return row


def outcome(row: Row) -> Outcome:
    """Return one pair; the chosen response is the best."""
    fields = PairRow.read(last_turns(row))
    return fields.pair("pairs", fields.chosen, fields.rejected)


def _check_preference(name: str, value: Any, faults: list[Fault]) -> str:
    """Read which response is preferred, `a` or `b`; a number is a fault, as both 0 and 1 may mean the first."""
    given = check_text(name, value, faults).strip().casefold()
    preferred = _PREFERRED.get(given, "")
    if given and not preferred:
        faults.append(Fault(Defect.BAD_RATING, f"{name} must be A, B or tie, got {shown(value)}"))
    elif preferred == "tie":
        faults.append(Fault(Defect.TIE, f"{name} is {shown(value)}"))
    return preferred


class PreferenceRow(_OwnRow):
    """Two responses, and which one a person prefers: `A`, `B`, `response_a`, `model_b`, `tie`, in any case.

    The other columns are those of `PairRow`. A tie makes no item.
    """

    FIELDS: ClassVar = ("prompt", "response_a", "response_b")
    IGNORED_COLUMNS: ClassVar = ("model_a", "model_b")
    response_a: Response
    response_b: Response
    preference: Annotated[str, field(_check_preference, "")] = Field(
        validation_alias=AliasChoices("preference", "winner", "preferred", "label")
    )


def preference_outcome(row: Row) -> Outcome:
    """Return one pair; the preferred response is the best."""
    fields = PreferenceRow.read(row)
    pair = (fields.response_a, fields.response_b)
    return fields.pair("preferences", *(pair if fields.preference == "a" else pair[::-1]))


class MRewardBenchRow(RowModel):
    """M-RewardBench (arXiv 2410.15522, HF CohereLabsCommunity/multilingual-reward-bench), by its card.

    RewardBench's rows in 23 languages, a configuration and the split `test` for each, e.g. `deu_Latn`. The domain is
    the category (Chat, Chat Hard, Safety, Reasoning); `source` is RewardBench's subset. A translation keeps the id, and
    so is in the question group of its original. Rows of the configuration `translation` need no category.
    """

    FIELDS: ClassVar = ("id", "prompt", "chosen", "rejected", "source", "category")
    DEFAULTS: ClassVar = ("culture",)
    IGNORED_COLUMNS: ClassVar = ("chosen_model", "rejected_model")
    id: Identifier
    prompt: Prompt
    chosen: Response
    rejected: Response
    language: Language
    subset: Text = Field("", validation_alias=AliasChoices("source", "subset"))
    category: Text = "translation"
    culture: Culture = None  # not published: M-RewardBench has none


def m_rewardbench_outcome(row: Row) -> Outcome:
    """Return one pair; the chosen response is the best."""
    fields = MRewardBenchRow.read(row)
    key = "/".join(filter(None, (fields.subset, fields.id)))
    common = {"domain": fields.category.lower(), "source": "m_rewardbench", "group": f"m_rewardbench/{key}"}
    name = f"m_rewardbench/{fields.language}/{key}"
    return fields.outcome(*fields.best_first(fields.chosen, [fields.rejected], id=name, **common))
