"""Prompt, parser and rewards: pure functions, no torch."""

from think_as_locals.judging.grammar import RULES, write
from think_as_locals.judging.parse import parse
from think_as_locals.judging.present import permute, present
from think_as_locals.judging.render import neutralise, prompt_names, render
from think_as_locals.judging.rewards import COMPONENTS, score

__all__ = [
    "COMPONENTS",
    "RULES",
    "neutralise",
    "parse",
    "permute",
    "present",
    "prompt_names",
    "render",
    "score",
    "write",
]
