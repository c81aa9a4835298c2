"""Prompt, parser and rewards: pure functions, no torch."""

from think_as_locals.judging.formats import RULES, label_index, parse, prompt_format, write
from think_as_locals.judging.prompt import (
    CHAT_TOKENS,
    neutralise,
    prompt_digest,
    prompt_texts,
    render,
    render_presented,
    shuffle_responses,
)
from think_as_locals.judging.rewards import COMPONENTS, Component, Evidence, score
from think_as_locals.judging.rubric import is_degenerate, rubric_span
from think_as_locals.types import reorder_responses
