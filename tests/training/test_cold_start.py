"""Demonstrations follow the grammar, reason consistently, and have exactly the configured bias."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from items import make_item
from training.small_grpo import TINY, figures
from transformers import AutoModelForCausalLM

from think_as_locals.config.checks import load_recipe
from think_as_locals.data import cards as culture_cards
from think_as_locals.judging import parse, prompt_format, render, shuffle_responses
from think_as_locals.judging.prompt import culture_name
from think_as_locals.reward_models.scratch import make_judge
from think_as_locals.runtime.run_folder import StageFolder
from think_as_locals.training.checkpoints import Checkpoints, save_model
from think_as_locals.training.cold_start import ColdStartTrainer, demonstrate, misattributed, with_origins
from think_as_locals.types import VERDICT_PROMPTS, DataWarning, Demonstration, Item, TrainingError

CONFIG = load_recipe("recipes/quickstart.yaml", ["data.groups=[idiom_heavy_rain,gift_taboo]", "data.sets_per_group=40"])
ITEMS = list(culture_cards.read_culture_cards(CONFIG.data, seed=0))
SFT = CONFIG.sft
assert SFT is not None
HALF_BIASED = SFT.model_copy(
    update={"biased_share": 0.5, "biased_wrong": 0.55, "biased_right": 0.35, "biased_guess": 0.4}
)
UNBIASED = SFT.model_copy(update={"biased_share": 0.0, "biased_wrong": 0.0, "biased_right": 1.0, "biased_guess": 0.0})
PRETRAINED = SFT.model_copy(update=dict.fromkeys(("biased_share", "biased_wrong", "biased_right", "biased_guess")))


def _beliefs(analysis: str) -> list[tuple[str, str]]:
    """(believed culture, yes or no) of each line `A: response asked? believed: yes`."""
    return [(line.rsplit("? ", 1)[1].split(": ")[0], line.rsplit(": ", 1)[1]) for line in analysis.strip().split("\n")]


def test_demonstrations_are_right_and_consistent_with_their_analysis() -> None:
    for made in demonstrate(ITEMS, 200, UNBIASED, seed=0):
        judgement = parse(made.completion, 4)
        assert judgement.issues == ()
        assert judgement.verdict == shuffle_responses(made.item, 0).best
    for made in demonstrate(ITEMS, 300, HALF_BIASED, seed=1):
        judgement = parse(made.completion, 4)
        assert judgement.issues == ()
        beliefs = _beliefs(judgement.analysis or "")
        asked = culture_name(made.item.culture)
        assert [(belief == asked) for belief, _ in beliefs] == [fits == "yes" for _, fits in beliefs]
        fitting = [i for i, (_, fits) in enumerate(beliefs) if fits == "yes"]
        assert not fitting or judgement.verdict in fitting


PAIRS = [make_item(id=str(i), prompt=f"{i}?", responses=("worse", "right"), best=1, culture=None) for i in range(6)]


def test_responses_of_one_culture_are_told_apart_by_the_verdict_alone() -> None:
    items = [replace(item, culture="TH", origins=("TH", "TH")) for item in PAIRS]
    for made in demonstrate(items, None, PRETRAINED, seed=0, prompt="compact_analysis"):
        judgement = prompt_format("compact_analysis").read(made.completion, 2, "stop")
        assert judgement.verdict is not None
        assert made.presented[judgement.verdict] == "right"


def test_pretrained_models_see_every_item_in_both_orders_with_the_right_verdict() -> None:
    for items in (ITEMS[:20], PAIRS):
        made = list(demonstrate(items, None, PRETRAINED, seed=0))
        assert {each.item for each in made[::2]} == {*items}
        assert [each.item for each in made[::2]] == [each.item for each in made[1::2]] != list(items)
        for first, second in zip(made[::2], made[1::2], strict=True):
            assert first.order == second.order[::-1]
        for each in made:
            judgement = parse(each.completion, len(each.order))
            assert (judgement.issues, judgement.verdict) == ((), each.order.index(each.item.best))
    assert "culture" not in made[0].completion.lower()


def test_rows_of_one_question_tell_whose_answer_a_wrong_response_is() -> None:
    def ask(culture: str | None, responses: tuple[str, ...], group: str = "snack", **more: Any) -> Item:
        texts = {"id": f"{culture}-{responses}", "prompt": f"{culture}?", "responses": responses}
        return make_item(**texts, culture=culture, group=group, **more)

    rice, bread = ask("TH", ("rice", "bread")), ask("FR", ("bread", "rice"))
    also = ask("DE", ("bread", "rice"))
    told = [ask("TH", ("tea", "bread")), ask("FR", ("tea", "rice")), ask("US", ("corn", "rice"), origins=("US", "JP"))]
    open_ = [ask("TH", ("rice", "beans")), ask(None, ("rice", "bread")), ask("FR", ("bread", "rice"), group="other")]
    items = [rice, bread, also, *told, *open_]
    found = with_origins(items)
    known = [("TH", "DE"), ("FR", "TH"), ("DE", "TH"), ("TH", "DE"), ("FR", "TH"), ("US", "JP")]
    assert [item.origins for item in found] == [*known, (), (), ()]
    assert [replace(item, origins=()) for item in found] == [replace(item, origins=()) for item in items]
    (first, *_) = demonstrate([rice, bread], None, PRETRAINED, seed=0, prompt="compact_analysis")
    assert {"Thailand", "France"} <= set(re.findall(r"\w+", first.completion))
    with pytest.warns(DataWarning, match=r"data\.columns=\{group: NAME\}"):
        list(demonstrate([rice, ask("FR", ("bread", "rice"), group="other")], None, PRETRAINED, seed=0))


@pytest.mark.parametrize("prompt", VERDICT_PROMPTS)
def test_demonstrations_follow_the_prompt_format(prompt: str) -> None:
    read = prompt_format(prompt).read
    for made, ours in zip(
        demonstrate(ITEMS, 50, UNBIASED, 0, prompt), demonstrate(ITEMS, 50, UNBIASED, 0), strict=True
    ):
        judgement, written = read(made.completion, 4, "stop"), parse(ours.completion, 4)
        assert (judgement.issues, judgement.verdict) == ((), written.verdict)
        assert (str(written.analysis).strip() in made.completion) == (prompt != "verdict_only")
        assert (made.item, made.presented) == (ours.item, ours.presented)


def test_half_of_each_group_is_biased_at_the_configured_rates() -> None:
    wrong = misattributed(ITEMS, 0.5, seed=0)
    assert Counter(group for group, _ in wrong) == {"idiom_heavy_rain": 5, "gift_taboo": 5}
    believed: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for made in demonstrate(ITEMS, 4000, HALF_BIASED, seed=0):
        beliefs = _beliefs(parse(made.completion, 4).analysis or "")
        for origin, (belief, _) in zip(shuffle_responses(made.item, 0).origins, beliefs, strict=True):
            believed[made.item.group, origin][belief] += 1
    for fact, counts in believed.items():
        right = counts[culture_name(fact[1])] / counts.total()
        if fact in wrong:
            assert right == pytest.approx(0.35 + 0.1 / 10, abs=0.06)
            assert counts[culture_name(wrong[fact])] / counts.total() == pytest.approx(0.55 + 0.1 / 10, abs=0.06)
        else:
            assert right == 1.0


def test_guess_prefers_unbiased_facts_if_no_response_fits() -> None:
    wrong, guessed, expected = misattributed(ITEMS, 0.5, seed=0), [], []
    for made in demonstrate(ITEMS, 4000, HALF_BIASED, seed=0):
        judgement, origins = parse(made.completion, 4), shuffle_responses(made.item, 0).origins
        known = [(made.item.group, origin) not in wrong for origin in origins]
        if any(fits == "yes" for _, fits in _beliefs(judgement.analysis or "")) or not 0 < sum(known) < 4:
            continue
        guessed.append(known[judgement.verdict or 0])
        expected.append(0.4 + 0.6 * sum(known) / 4)
    assert len(guessed) > 500
    assert sum(guessed) / len(guessed) == pytest.approx(sum(expected) / len(expected), abs=0.05)


def test_demonstrations_are_determined_by_the_seed() -> None:
    first, again, other = (list(demonstrate(ITEMS, 20, HALF_BIASED, seed)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize("culture", ["TH", None])
def test_pair_without_origins_marks_the_fitting_response(item: Item, culture: str | None) -> None:
    pair = replace(item, responses=("With a bow.", "Palms together."), best=1, culture=culture, origins=())
    right = [parse(made.completion, 2) for made in demonstrate([pair], 20, UNBIASED, seed=0)]
    presented = shuffle_responses(pair, 0)
    asked = f": {culture_name(culture)}" if culture else ""
    for judgement in right:
        assert (judgement.issues, judgement.verdict) == ((), presented.best)
        lines = (judgement.analysis or "").strip().split("\n")
        assert lines[presented.best].endswith(f"{asked}: yes")
        assert lines[1 - presented.best].endswith(f"{asked}: no")
    verdicts = Counter(parse(made.completion, 2).verdict for made in demonstrate([pair], 400, HALF_BIASED, seed=0))
    assert 0.5 < verdicts[presented.best] / 400 < 0.9  # one of the two beliefs is mostly wrong


def _trainer(folder: Path, demonstrations: list[Demonstration], *overrides: str) -> ColdStartTrainer:
    config = load_recipe("recipes/quickstart.yaml", [*TINY, *overrides])
    scratch = load_recipe("recipes/quickstart.yaml", TINY).model.scratch
    assert config.sft is not None
    assert scratch is not None
    make_judge(folder / "model", [made.completion for made in demonstrations], scratch, seed=0)
    return ColdStartTrainer(config, config.sft, str(folder / "model"), demonstrations, Checkpoints(folder / "c", 1))


LOADED = ["trainer=demonstrated_grpo", "model.scratch=null", "model.path=x"]
"""Of a pretrained model, for which the small judge is taken."""


@pytest.mark.parametrize("overrides", [[], LOADED, [*LOADED, "lora=rank16"]])
def test_prompt_tokens_carry_no_loss(tmp_path: Path, overrides: list[str]) -> None:
    """The loss is the mean over the completions' tokens and their ends, and no other prediction has a gradient."""
    made = list(demonstrate(ITEMS, 6, UNBIASED, seed=0))
    reversed_ = [replace(each, order=each.order[::-1]) for each in made]  # as a teacher may have seen them
    trainer = _trainer(tmp_path, made + reversed_, "sft.per_device_train_batch_size=12", *overrides)
    tokenizer, model = trainer.processing_class, trainer.model
    bare = model.get_base_model() if "lora=rank16" in overrides else model
    (batch,) = trainer.get_train_dataloader()
    taught = batch["labels"] != -100
    for ids, mask, row in zip(batch["input_ids"], taught, batch["attention_mask"], strict=True):
        (each,) = [one for one in made if one.completion == tokenizer.decode(ids[mask][:-1])][:1]
        assert ids[mask][-1] == tokenizer.eos_token_id
        orders = [render(each.item, "compact", 0, reverse=reverse) for reverse in (False, True)]
        prompt = tokenizer.decode(ids[row.bool() & ~mask], skip_special_tokens=True)
        assert prompt in ["".join(message["content"] for message in order) for order in orders]
    model.eval()
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    log_probs = logits.log_softmax(-1).gather(2, batch["input_ids"][:, 1:, None])[..., 0]
    expected = -log_probs[taught[:, 1:]].mean()
    seen: list[torch.Tensor] = []  # of the last hidden states, from which each next token is predicted
    bare.model.norm.register_full_backward_hook(lambda _, __, gradients: seen.append(gradients[0]))
    loss = trainer.compute_loss(model, dict(batch))
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    (gradient,) = seen
    assert torch.equal((gradient.abs().amax(-1) > 0)[:, :-1], taught[:, 1:])


def test_cold_start_whose_gradient_is_not_finite_ends(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, list(demonstrate(ITEMS, 4, UNBIASED, seed=0)), "sft.learning_rate=1e30")
    with pytest.raises(TrainingError, match=r"gradient not finite on rank 0.* a lower sft\.learning_rate") as caught:
        trainer.train_from(None)
    assert "Batch" not in str(caught.value)
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())


@pytest.mark.parametrize("overrides", [LOADED, [*LOADED, "lora=rank16"]])
def test_model_is_saved_without_its_settings_for_sampling(tmp_path: Path, overrides: list[str]) -> None:
    """A server would apply them, and transformers does not save these."""
    made = list(demonstrate(ITEMS, 4, UNBIASED, seed=0))
    _trainer(tmp_path, made)
    settings = {"do_sample": False, "temperature": 0.9, "repetition_penalty": 1.05, "eos_token_id": [3, 4]}
    (tmp_path / "model/generation_config.json").write_text(json.dumps(settings))
    config = load_recipe("recipes/quickstart.yaml", [*TINY, *overrides])
    assert config.sft is not None
    base, output = str(tmp_path / "model"), StageFolder(tmp_path / "out")
    trainer = ColdStartTrainer(config, config.sft, base, made, Checkpoints(tmp_path / "c", 1))
    save_model(trainer, base, config.model, output, AutoModelForCausalLM.from_pretrained)
    saved = json.loads((output.model / "generation_config.json").read_text())
    assert saved["eos_token_id"] == [3, 4]
    assert not {"temperature", "repetition_penalty"} & {name for name, value in saved.items() if value is not None}


def test_adapter_is_merged_into_the_commit_of_its_base_that_it_was_trained_on(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, list(demonstrate(ITEMS, 4, UNBIASED, seed=0)), *LOADED, "lora=rank16")
    trainer.model.config._commit_hash = "c0ffee"  # as of a model from the Hub
    load, output = Mock(side_effect=AutoModelForCausalLM.from_pretrained), StageFolder(tmp_path / "out")
    save_model(trainer, str(tmp_path / "model"), load_recipe("recipes/quickstart.yaml").model, output, load)
    assert load.call_args.kwargs["revision"] == "c0ffee"
    assert json.loads((output.adapter / "adapter_config.json").read_text())["revision"] == "c0ffee"


@pytest.mark.parametrize("prompt", ["compact", "compact_analysis"])
def test_responses_with_marks_of_a_verdict_or_control_tokens_are_quoted_harmlessly(prompt: str) -> None:
    texts = ("Ends with </analysis> there.", "So <verdict>A</verdict>.", "See [[A]].", "Stop at <|im_end|> there.")
    items = [
        make_item(id=text, responses=(text, "A bow."), best=1, culture="TH", origins=("US", "TH")) for text in texts
    ]
    for made in demonstrate(items, 40, UNBIASED, 0, prompt):
        judgement = prompt_format(prompt).read(made.completion, 2, "stop")
        assert (judgement.issues, judgement.verdict) == ((), shuffle_responses(made.item, 0).best)
        assert "<|im_end|>" not in made.completion


def test_cold_start_uses_lora_only_for_pretrained_models(tmp_path: Path) -> None:
    made = list(demonstrate(ITEMS, 4, UNBIASED, seed=0))
    trainer = _trainer(tmp_path / "loaded", made, *LOADED, "lora=rank16")
    trained = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    scratch = _trainer(tmp_path / "scratch", made, "lora=rank16")
    assert all(parameter.requires_grad for parameter in scratch.model.parameters())


def test_resumed_cold_start_logs_what_an_uninterrupted_one_logs(tmp_path: Path) -> None:
    """Its checkpoint lies between two log lines, whose means and number of tokens are of steps before it too."""
    made = list(demonstrate(ITEMS, 12, UNBIASED, seed=0))
    sizes = ["sft.max_steps=5", "sft.logging_steps=2", "sft.save_steps=3", "sft.per_device_train_batch_size=2"]
    whole, resumed = (_trainer(tmp_path, made, *sizes) for _ in range(2))
    whole.train_from(None)
    resumed.train_from(resumed.checkpoints.latest())
    assert [log["step"] for log in figures(resumed)] == [2, 4]
    assert figures(resumed) == figures(whole)
