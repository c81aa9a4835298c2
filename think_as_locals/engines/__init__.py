"""Sampling completions from a judge."""

from think_as_locals.engines.engine import Chat, Engine, Messages, Sampling, sample_all
