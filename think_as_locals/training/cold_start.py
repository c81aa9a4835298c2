"""The cold start: supervised fine-tuning on demonstrations, with TRL's SFTTrainer.

The demonstrations are a teacher's (`sft.data`), or are made here from a template: they follow the output format and
recall, response by response, the culture it belongs to and whether that is the one in question; the verdict follows.
Where a row does not say whose answer a wrong response is, rows of the same question may tell, in which another culture
prefers it; otherwise the lines only say whether each response fits. A pretrained model is shown
every item in both orders, with the right verdict. A judge from scratch is taught errors: a share of the facts is mostly
attributed to one wrong culture, as pretrained models do with cultures that they saw little of, for GRPO to correct.
"""

from __future__ import annotations

import random
import tomllib
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from torch import nn
from torch.nn import functional
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

from think_as_locals.config.run_schema import RunConfig
from think_as_locals.config.schema import SftSection
from think_as_locals.data.splits import hash_fraction
from think_as_locals.engines import Chat
from think_as_locals.engines.transformers_engine import bare_model
from think_as_locals.judging import prompt_format, render_presented, reorder_responses
from think_as_locals.judging.formats import Format
from think_as_locals.judging.prompt import CHAT_TOKENS, culture_name, neutralise, shuffled_order
from think_as_locals.runtime.model_files import reading_model
from think_as_locals.training.checkpoints import CheckpointedTrainer, Checkpoints
from think_as_locals.training.grpo import LazyDataset, adapter_config, trl_arguments
from think_as_locals.types import LABELS, Criterion, DataWarning, Demonstration, Item, Rubric

TRACKED_PART = "-sft"  # behind the name of the run, in trackers
_NO_LABEL = -100
_UNKNOWN_ORIGIN = "-"  # the origin of a response that is not the best, if the source does not give it
_TEXTS = tomllib.loads(files(__package__).joinpath("demonstrations.toml").read_text(encoding="utf-8"))


class ColdStartTrainer(CheckpointedTrainer, SFTTrainer):
    """TRL's SFTTrainer on demonstrations; it can be stopped and resumed.

    Of a pretrained model only the tokens before a label go on to the LM head: without a GPU, TRL computes the logits of
    prompts too, which are half of the work with a large vocabulary.
    """

    section = "sft"

    def __init__(
        self,
        config: RunConfig,
        sft: SftSection,
        model: str,
        demonstrations: Sequence[Demonstration],
        checkpoints: Checkpoints,
    ) -> None:
        with reading_model(model):
            tokenizer = AutoTokenizer.from_pretrained(model, revision=config.model.revision, trust_remote_code=False)
        arguments = trl_arguments(config, sft, checkpoints.folder)
        super().__init__(
            checkpoints=checkpoints,
            model=model,
            args=SFTConfig(
                **{**arguments, "report_to": config.grpo.report_to, "run_name": f"{config.run.name}{TRACKED_PART}"},
                max_length=None,
                dataset_kwargs={"skip_prepare_dataset": True},
                remove_unused_columns=False,
            ),
            train_dataset=DemonstrationDataset(config, demonstrations, tokenizer),
            processing_class=tokenizer,
            peft_config=adapter_config(config, sft),
        )
        self._pretrained = config.model.path is not None

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Return TRL's loss."""
        if not self._pretrained:
            return super().compute_loss(model, inputs, *args, **kwargs)
        following = functional.pad(inputs.pop("labels")[:, 1:], (0, 1), value=_NO_LABEL)
        labelled = following != _NO_LABEL

        def keep_labelled(module: nn.Module, args: Any, output: Any) -> None:
            output.last_hidden_state = output.last_hidden_state[labelled][None]

        with bare_model(self.model).base_model.register_forward_hook(keep_labelled):
            shifted = {**inputs, "shift_labels": following[labelled][None]}
            return super().compute_loss(model, shifted, *args, **kwargs)


class DemonstrationDataset(LazyDataset):
    """Rows of GRPO's prompt, the completion and an end token; only the last two have labels.

    Completions are tokenised when they are accessed: those of all steps would delay the first one.
    """

    def __init__(self, config: RunConfig, demonstrations: Sequence[Demonstration], tokenizer: Any) -> None:
        super().__init__(len(demonstrations))
        chat = Chat(tokenizer, config.model.chat_template_kwargs)
        distinct = {(d.item, d.order): d for d in demonstrations}  # an item is drawn several times
        chat.check_texts(dict.fromkeys(item for item, _ in distinct))
        settings = {"special_tokens": chat.special_tokens, **config.prompt.arguments()}
        rendered = [render_presented(d.item, d.presented, **settings) for d in distinct.values()]
        self._prompts = dict(zip(distinct, chat.encode(rendered), strict=True))
        self._demonstrations, self._tokenizer = demonstrations, tokenizer

    def rows(self, indices: Sequence[int]) -> dict[str, Any]:
        """Return the columns of some rows."""
        chosen, end = [self._demonstrations[index] for index in indices], self._tokenizer.eos_token_id
        prompts = [self._prompts[d.item, d.order] for d in chosen]
        encoded = self._tokenizer([d.completion for d in chosen], add_special_tokens=False)["input_ids"]
        completions = [[*ids, end] for ids in encoded]
        pairs = list(zip(prompts, completions, strict=True))
        return {
            "input_ids": [[*prompt, *completion] for prompt, completion in pairs],
            "labels": [[_NO_LABEL] * len(prompt) + completion for prompt, completion in pairs],
        }


def demonstrate(
    items: Sequence[Item], count: int | None, sft: SftSection, seed: int, prompt: str = "compact"
) -> Iterator[Demonstration]:
    """Yield demonstrations in the format of a prompt, with the bias that `sft` sets.

    Of `count` random items; without a `count` of every item in random order, in two orders of its responses one after
    the other, so that no position is taught.
    """
    format_, items = prompt_format(prompt), with_origins(items)
    if count is None and any(item.culture for item in items) and not any(map(has_origins, items)):
        untold = "no row tells whose answer a wrong response is, so that the demonstrations teach little but the format"
        remedy = "give rows of one question one group (data.columns={group: NAME}), or items their `origins`"
        warnings.warn(f"{untold}: {remedy}", DataWarning, stacklevel=2)
    cultures = sorted({culture for item in items for culture in origins_of(item)})
    share, mostly_wrong, right_share, guess = (
        value or 0.0 for value in (sft.biased_share, sft.biased_wrong, sft.biased_right, sft.biased_guess)
    )
    rng = random.Random(seed)
    if count is None:
        drawn_items = [item for item in rng.sample(items, len(items)) for _ in range(2)]
    else:
        drawn_items = rng.choices(items, k=count)
    groups = {item.group for item in drawn_items}
    wrong = misattributed([item for item in items if item.group in groups], share, seed)
    shuffled = cache(lambda item: tuple(shuffled_order(item.responses, seed)))
    for number, item in enumerate(drawn_items):
        order = shuffled(item)[:: -1 if count is None and number % 2 else 1]
        presented = reorder_responses(item, order)
        origins = origins_of(presented)
        known = [i for i, right in enumerate(origins) if (presented.group, right) not in wrong]
        beliefs = []
        for right in origins:
            drawn, belief = rng.random(), right
            if (presented.group, right) in wrong and drawn >= right_share:
                mostly = drawn < right_share + mostly_wrong
                belief = wrong[presented.group, right] if mostly else rng.choice(cultures)
            beliefs.append(belief)
        fitting = [i for i, belief in enumerate(beliefs) if belief == origins[presented.best]]
        guesses = known if known and rng.random() < guess else range(len(beliefs))
        verdict = rng.choice(fitting or guesses)
        yield Demonstration(item, order, _completion(format_, presented, beliefs, verdict))


def with_origins(items: Sequence[Item]) -> Sequence[Item]:
    """Return items with the origins that others of their question group tell: the cultures that prefer a response.

    An item stays as it is if it has origins or no culture, or if no other culture prefers one of its wrong responses.
    """
    preferring: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for item in items:
        if item.culture is not None:
            preferring[item.source, item.group, item.responses[item.best]].add(item.culture)
    found = []
    for item in items:
        told = [preferring.get((item.source, item.group, text), set()) for text in item.responses]
        origins = [min(cultures - {item.culture}, default="") for cultures in told]
        origins[item.best] = item.culture or ""
        found.append(item if item.origins or not all(origins) else replace(item, origins=tuple(origins)))
    return found


def origins_of(item: Item) -> tuple[str, ...]:
    """Return the culture that each response holds for; if the source does not give it, the best has the item's."""
    if has_origins(item):
        return item.origins
    return tuple(item.culture or "" if i == item.best else _UNKNOWN_ORIGIN for i in range(len(item.responses)))


def has_origins(item: Item) -> bool:
    """Return whether an item gives its culture and the one that each response holds for, the best one's alone."""
    return item.culture is not None and bool(item.origins) and item.origins.count(item.origins[item.best]) == 1


def misattributed(items: Sequence[Item], biased_share: float, seed: int) -> dict[tuple[str, str], str]:
    """Return (question group, culture) of the biased facts -> the culture they are mostly attributed to.

    In every group the same share of the cultures loses its facts, spread evenly over those that keep theirs.
    """
    holders: dict[str, set[str]] = defaultdict(set)
    for item in items:
        holders[item.group].update(origins_of(item))
    wrong: dict[tuple[str, str], str] = {}
    for group, cultures in holders.items():
        ranked = sorted(cultures, key=lambda culture: hash_fraction(f"biased {group}/{culture}", seed))
        lost = round(biased_share * len(ranked))
        # From the end of the ranking, again and again: the last ones keep their facts.
        wrong |= {
            (group, ranked[i]): ranked[-1 - i % max(1, len(ranked) - lost)] for i in range(min(lost, len(ranked) - 1))
        }
    return wrong


def _completion(format_: Format, presented: Item, beliefs: Sequence[str], verdict: int) -> str:
    kind = "line" if has_origins(presented) else "line_without_origin" if presented.culture else "line_without_culture"
    line = Template(_TEXTS[kind])
    right = origins_of(presented)[presented.best]
    # A full stop separates the response from the culture behind it, for readers and the tokenizer.
    responses = [text if text.endswith((".", "!", "?", "。")) else f"{text}." for text in presented.responses]
    lines = [
        line.substitute(
            label=label,
            response=neutralise(response, (*CHAT_TOKENS, *format_.reserved_marks)),
            item_culture=culture_name(presented.culture),
            culture=culture_name(belief),
            fits=_TEXTS["yes" if belief == right else "no"],
        )
        for label, response, belief in zip(LABELS, responses, beliefs, strict=False)
    ]
    rubrics = _TEXTS["rubrics"]
    criteria = rubrics.get(presented.domain, rubrics["default" if presented.culture else "without_culture"])
    rubric = Rubric(tuple(Criterion(*criterion) for criterion in criteria))
    return format_.write(rubric, "\n".join(lines), verdict)
