"""Rows of people's data -> items; no torch."""

from think_as_locals.data.flips import flip_sets
from think_as_locals.data.load import Splits, load, read

__all__ = ["Splits", "flip_sets", "load", "read"]
