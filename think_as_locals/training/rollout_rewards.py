"""Our rewards for TRL: the rollouts of a batch are parsed and scored together.

If a user's own reward raises or times out, the rollout has no reward, and TRL gives it no advantage. Too many such
faults, or a reward that is not finite, end the run on all ranks together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from accelerate import PartialState
from accelerate.utils import gather_object

from think_as_locals.config.run_schema import RunConfig
from think_as_locals.engines import Chat, Messages
from think_as_locals.judging import COMPONENTS, Evidence, is_degenerate, prompt_format, rubric_span
from think_as_locals.judging.rewards import load_custom_rewards
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.training.criteria_gain import GainQuery, LogProbPair
from think_as_locals.training.faults import ParseFailureGuard, RewardGuard
from think_as_locals.types import GRAMMAR_PROMPTS, LABELS, Item, Judgement, RewardBreakdown, Rollout

ScoreGains = Callable[[Sequence[GainQuery]], Sequence[LogProbPair | None]]


class Example(TypedDict):
    """A row of the training data: an item as presented, and its prompt, which come back with the rollouts."""

    index: int
    presented: Item
    source: str
    prompt: Messages


class Rewards:
    """Scores the rollouts of a step."""

    def __init__(self, config: RunConfig, sources: Sequence[str], labels: str, chat: Chat, run: RunFolder) -> None:
        """Score rollouts about items from these sources, with responses under these labels."""
        self._sources, self._labels = sources, labels
        self.weights = config.reward.weighted()
        self._format = prompt_format(config.prompt.template)
        self._asks_for_rubric = config.prompt.template in GRAMMAR_PROMPTS
        self.guard = RewardGuard(config.reward, run.faults)
        self.parse_failures = ParseFailureGuard(config, run)
        self._both_orders = config.reward.both_orders
        self._group = config.grpo.num_generations
        self._chat = chat
        own = load_custom_rewards(config.reward.own)
        self.own = {name: own[name] for name in self.weights if name in own}
        self.components = {name: COMPONENTS[name] for name in self.weights if name not in own}
        self._gain_clip = low, high = config.reward.criteria_gain.clip
        self._evidence = Evidence(
            gain_clip=(low, high),
            rubric_language=config.prompt.rubric_language,
            length_share=config.reward.length.share,
            max_completion_length=config.grpo.max_completion_length,
            num_rules=len(self._format.rules),
        )
        self._rows: list[dict[str, Any]] = []

    def score(
        self,
        completion_ids: Sequence[Sequence[int]],
        examples: Sequence[Example],
        step: int,
        log: Callable[[str, float], None],
        score_gains: ScoreGains,
    ) -> list[RewardBreakdown | None]:
        """Return the rewards of this rank's rollouts, each of an example; all ranks call this together."""
        items = [example["presented"] for example in examples]
        rollouts = [self._chat.rollout(ids) for ids in completion_ids]
        judgements = [
            self._format.read(rollout.text, len(item.responses), rollout.finish_reason)
            for rollout, item in zip(rollouts, items, strict=True)
        ]
        gains: Sequence[LogProbPair | None] = [None] * len(examples)
        if "criteria_gain" in self.weights:
            queries = [
                GainQuery(
                    row=example["index"],
                    prompt=example["prompt"],
                    completion_ids=ids,
                    rubric=rubric_span(judgement, len(example["presented"].responses)),
                    verdict=example["presented"].best,
                )
                for example, ids, judgement in zip(examples, completion_ids, judgements, strict=True)
            ]
            gains = score_gains(queries)
            low, high = self._gain_clip
            clipped = [not low < gain[0] - gain[1] < high for gain in gains if gain]
            log("criteria_gain_clipped", sum(clipped) / max(1, len(clipped)))  # a gain of all alike teaches nothing
        verdicts = [(j.verdict, j.verdict == i.best) for j, i in zip(judgements, items, strict=True)]
        all_verdicts: list[tuple[int | None, bool]] = gather_object(verdicts)
        partners = self._partners([right for _, right in all_verdicts], len(examples))
        evidences = [
            replace(self._evidence, num_tokens=len(rollout.token_ids), log_probabilities=gain, partner_right=partner)
            for rollout, gain, partner in zip(rollouts, gains, partners, strict=True)
        ]
        scored = list(zip(judgements, items, evidences, strict=True))
        own = self.guard.attempt(self.own, scored) if self.own else [{} for _ in scored]
        breakdowns = list[RewardBreakdown | None]()
        for given, rollout in zip(own, scored, strict=True):
            parts = {name: float(component(*rollout)) for name, component in self.components.items()}
            known = None if isinstance(given, str) else {name: {**parts, **given}[name] for name in self.weights}
            breakdowns.append(RewardBreakdown(known) if known is not None else None)
        columns = zip(examples, rollouts, judgements, breakdowns, own, strict=True)
        table = [self._row(step + 1, *row) for row in columns]
        self._rows += table
        log("parse_failure", sum(verdict is None for verdict, _ in verdicts) / len(verdicts))
        log("correct", sum(right for _, right in verdicts) / len(verdicts))
        log("in_format", sum(not judgement.issues for judgement in judgements) / len(judgements))
        self._log_verdicts(all_verdicts, log)
        self._log_sources(table, log)
        log("reward_faults", self.guard.check_failures(table, step + 1))
        if self._asks_for_rubric:
            self._log_degenerate_share(breakdowns, judgements, items, log)
        share = sum(verdict is None for verdict, _ in all_verdicts) / len(all_verdicts)
        self.parse_failures.check(share, judgements, step + 1)
        return breakdowns

    def take_rows(self) -> list[dict[str, Any]]:
        """Return the scored completions since the last call, as rows of a table."""
        rows, self._rows = self._rows, []
        return rows

    def _partners(self, right: list[bool], count: int) -> list[bool | None]:
        """Return whether each rollout's partner in the other order is right; a group may be split over two ranks."""
        if not self._both_orders:
            return [None] * count
        first, half = PartialState().process_index * count, self._group // 2
        indices = range(first, first + count)
        return [right[index + half if index % self._group < half else index - half] for index in indices]

    def _log_verdicts(self, verdicts: list[tuple[int | None, bool]], log: Callable[[str, float], None]) -> None:
        """Log the share of verdicts for each label, and how often both orders of an item are judged right."""
        given = [verdict for verdict, _ in verdicts if verdict is not None]
        for slot, label in enumerate(self._labels):
            log(f"verdict/{label}", given.count(slot) / max(1, len(given)))
        if self._both_orders:
            right, half = [right for _, right in verdicts], self._group // 2
            pairs = [p for p in range(len(right)) if p % self._group < half]
            log("consistent_accuracy", sum(right[p] and right[p + half] for p in pairs) / len(pairs))

    def _log_degenerate_share(
        self,
        breakdowns: Sequence[RewardBreakdown | None],
        judgements: Sequence[Judgement],
        items: Sequence[Item],
        log: Callable[[str, float], None],
    ) -> None:
        """Log the share of the positive weighted rewards that goes to rollouts that judge nothing."""
        earned = degenerate = 0.0
        for breakdown, judgement, item in zip(breakdowns, judgements, items, strict=True):
            parts = breakdown.parts if breakdown else dict.fromkeys(self.weights, 0.0)
            amount = sum(max(0.0, weight * parts[name]) for name, weight in self.weights.items())
            earned += amount
            degenerate += amount if amount and is_degenerate(judgement, item.responses) else 0.0
        totals = [sum(of_ranks) for of_ranks in zip(*gather_object([(degenerate, earned)]), strict=True)]
        log("degenerate_reward_share", totals[0] / totals[1] if totals[1] else 0.0)

    def _log_sources(self, table: list[dict[str, Any]], log: Callable[[str, float], None]) -> None:
        """Log by source, if there are several, the share of rollouts, the share that is right and the mean reward."""
        if len(self._sources) < 2:
            return
        rollouts: list[tuple[str, bool, float | None]] = gather_object(
            [(row["source"], row["correct"], row["reward"]) for row in table]
        )
        for source in sorted({source for source, *_ in rollouts}):
            right = [correct for name, correct, _ in rollouts if name == source]
            rewards = [reward for name, _, reward in rollouts if name == source and reward is not None]
            log(f"source/{source}/share", len(right) / len(rollouts))
            log(f"source/{source}/correct", sum(right) / len(right))
            if rewards:
                log(f"source/{source}/reward", sum(rewards) / len(rewards))

    def _row(
        self,
        step: int,
        example: Example,
        rollout: Rollout,
        judgement: Judgement,
        breakdown: RewardBreakdown | None,
        own: Mapping[str, float] | str,
    ) -> dict[str, Any]:
        item = example["presented"]
        criteria = judgement.rubric.criteria if judgement.rubric else ()
        parts = breakdown.parts if breakdown else {}
        return {
            "step": step,
            "id": item.id,
            "culture": item.culture,
            "domain": item.domain,
            "best_label": LABELS[item.best],
            "label": judgement.label,
            "prompt": example["prompt"][-1]["content"],
            "rubric": [f"{c.weight} | {c.name} | {c.description}" for c in criteria],
            "completion": rollout.text,
            "finish_reason": rollout.finish_reason,
            "issues": list(judgement.issues),
            "fault": own if isinstance(own, str) else None,
            **{f"reward/{name}": parts.get(name) for name in self.weights},
            "reward": breakdown.total(self.weights) if breakdown else None,
            "source": example["source"],
            "correct": judgement.verdict == item.best,
        }
