"""The order of training rows where a group holds both orders of an item."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trl.trainer.utils import RepeatSampler


class BothOrdersSampler(RepeatSampler):
    """TRL's RepeatSampler over items of two rows: item i is row 2i, then row 2i + 1, for G / 2 rollouts each.

    Epochs, windows, repeats and the split over processes are TRL's: only which row of the item a place gets is ours.

    Args:
        num_rows: Rows of the data set, two for each item.
        num_generations: G, an even number.
        settings: The rest of RepeatSampler's: `batch_size` (items of a window), `repeat_count`, `shuffle`, `seed`.

    Example:
        >>> list(BothOrdersSampler(4, num_generations=4, shuffle=False))
        [0, 0, 1, 1, 2, 2, 3, 3]
    """

    def __init__(self, num_rows: int, num_generations: int, **settings: Any) -> None:
        super().__init__(range(num_rows // 2), mini_repeat_count=num_generations, **settings)

    def __iter__(self) -> Iterator[int]:
        for place, item in enumerate(super().__iter__()):
            reverse = place % self.mini_repeat_count >= self.mini_repeat_count // 2
            yield 2 * item + reverse
