"""From rows of data sets to items, without torch."""

from think_as_locals.data.load import load, read
from think_as_locals.data.splits import Splits, flip_sets
