"""Prompt, parser and rewards: pure functions, no torch."""

from think_as_locals.judging.grammar import RULES, forced_verdict, write
from think_as_locals.judging.parse import parse
from think_as_locals.judging.present import permute, present
from think_as_locals.judging.readers import (
    asks_for_rating,
    label_opening,
    label_place,
    read_rating,
    read_verdict,
    reserved_marks,
)
from think_as_locals.judging.render import (
    CHAT_TOKENS,
    neutralise,
    prompt_digest,
    prompt_names,
    prompt_texts,
    render,
    render_shown,
)
from think_as_locals.judging.rewards import COMPONENTS, Component, Evidence, score
from think_as_locals.judging.rubric import rubric_span

__all__ = [
    "CHAT_TOKENS",
    "COMPONENTS",
    "RULES",
    "Component",
    "Evidence",
    "asks_for_rating",
    "forced_verdict",
    "label_opening",
    "label_place",
    "neutralise",
    "parse",
    "permute",
    "present",
    "prompt_digest",
    "prompt_names",
    "prompt_texts",
    "read_rating",
    "read_verdict",
    "render",
    "render_shown",
    "reserved_marks",
    "rubric_span",
    "score",
    "write",
]
