"""Our rewards in the form TRL calls: every rollout is scored once, each component is a function of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from think_as_locals.generation import Chat
from think_as_locals.judging import COMPONENTS, parse
from think_as_locals.types import LABELS, Item, Judgement, RewardBreakdown, Rollout

Reward = Callable[..., list[float]]


class Rewards:
    """Scores the rollouts of a step.

    Args:
        shown: The training items as they are shown; rows of the data set name them by `index`.
        weights: Reward components and their weights.
        chat: Decodes token ids as every other part of the program does.
    """

    def __init__(self, shown: Sequence[Item], weights: dict[str, float], chat: Chat) -> None:
        self._shown = shown
        self._weights = weights
        self._chat = chat
        self._scored: tuple[object, list[RewardBreakdown]] = (None, [])
        self._rows: list[dict[str, Any]] = []

    def functions(self) -> list[Reward]:
        """One function for each component; TRL logs each as `rewards/<name>`."""
        return [self._function(name) for name in self._weights]

    def take_rows(self) -> list[dict[str, Any]]:
        """The scored completions since the last call, as rows of a table."""
        rows, self._rows = self._rows, []
        return rows

    def _function(self, name: str) -> Reward:
        def reward(*, completion_ids: list[list[int]], index: list[int], **context: Any) -> list[float]:
            return [breakdown.parts[name] for breakdown in self._score(completion_ids, index, context)]

        reward.__name__ = name
        return reward

    def _score(
        self, completion_ids: list[list[int]], index: list[int], context: dict[str, Any]
    ) -> list[RewardBreakdown]:
        # TRL hands the same list to every function of a step.
        if self._scored[0] is not completion_ids:
            breakdowns = []
            failures = 0
            for ids, i in zip(completion_ids, index, strict=True):
                shown, rollout = self._shown[i], self._chat.rollout(ids)
                judgement = parse(rollout.text, len(shown.responses), rollout.finish_reason)
                breakdown = RewardBreakdown({name: COMPONENTS[name](judgement, shown) for name in self._weights})
                failures += judgement.verdict is None
                breakdowns.append(breakdown)
                self._rows.append(self._row(shown, rollout, judgement, breakdown, context["trainer_state"].global_step))
            context["log_metric"]("parse_failure", failures / len(index))
            self._scored = (completion_ids, breakdowns)
        return self._scored[1]

    def _row(
        self, shown: Item, rollout: Rollout, judgement: Judgement, breakdown: RewardBreakdown, step: int
    ) -> dict[str, Any]:
        verdict = judgement.verdict
        return {
            "step": step,
            "id": shown.id,
            "culture": shown.culture,
            "domain": shown.domain,
            "best": LABELS[shown.best],
            "verdict": None if verdict is None else LABELS[verdict],
            "completion": rollout.text,
            "finish_reason": rollout.finish_reason,
            "issues": list(judgement.issues),
            **{f"reward/{name}": value for name, value in breakdown.parts.items()},
            "reward": breakdown.total(self._weights),
        }
