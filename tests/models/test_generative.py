"""A judge is asked as it was trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from models.tiny import write_language_model

from think_as_locals.generation import Chat, Messages, Sampling
from think_as_locals.judging import present, write
from think_as_locals.models.generative import Judge, JudgeSettings
from think_as_locals.types import LABELS, ConfigError, Criterion, DataError, Item, Rollout, Rubric

RUBRIC = Rubric((Criterion(50, "Custom", "Done."), Criterion(30, "Place", "There."), Criterion(20, "Fit", "It fits.")))


class _Tokenizer:
    added_tokens_decoder: Mapping[int, object] = MappingProxyType({})
    chat_template: str | None = None
    all_special_tokens = ("<|end|>",)


class PickContaining:
    """An engine that reads the prompt and picks the response that contains a word."""

    chat = Chat(_Tokenizer())

    def __init__(self, word: str) -> None:
        self.word = word
        self.asked: list[Messages] = []

    def generate(self, conversations: Sequence[Messages], sampling: Sampling) -> list[Rollout]:
        assert sampling.temperature == 0
        self.asked += conversations
        rollouts = []
        for messages in conversations:
            parts = messages[-1]["content"].split("<response ")[1:]
            label = next(part[0] for part in parts if self.word in part)
            text = write(RUBRIC, "weighed", LABELS.index(label))
            rollouts.append(Rollout(text=text, token_ids=(), finish_reason="stop"))
        return rollouts


def test_predictions_follow_the_response_wherever_it_is_shown(item: Item) -> None:
    for seed in range(8):
        judge = Judge(PickContaining("palms"), JudgeSettings(seed=seed))
        (prediction,) = judge.predict([item])
        assert prediction.correct
        assert prediction.shown == present(item, seed)
        (wrong,) = Judge(PickContaining("kisses"), JudgeSettings(seed=seed)).predict([item])
        assert not wrong.correct


def test_the_settings_choose_the_prompt(item: Item) -> None:
    engine = PickContaining("palms")
    Judge(engine, JudgeSettings(prompt="compact")).judge([item])
    assert [message["role"] for message in engine.asked[0]] == ["user"]


def test_settings_are_saved_and_loaded(tmp_path: Path) -> None:
    settings = JudgeSettings(prompt="compact", seed=4, max_completion_length=9, chat_template_kwargs={"a": True})
    settings.save(tmp_path)
    assert JudgeSettings.load(str(tmp_path)) == settings


def test_a_model_without_settings_gets_the_defaults(tmp_path: Path) -> None:
    assert JudgeSettings.load(str(tmp_path)) == JudgeSettings()


@pytest.mark.parametrize("content", ["not json", json.dumps({"unknown": 1})])
def test_broken_settings_name_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "tal_judge.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tal_judge\.json"):
        JudgeSettings.load(str(tmp_path))


def test_an_unknown_backend_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="transformers, vllm"):
        Judge.load(str(tmp_path), backend="tgi")  # type: ignore[arg-type]


def test_one_item_has_one_judgement(item: Item, tmp_path: Path) -> None:
    judge = Judge.load(write_language_model(tmp_path, seed=0), max_completion_length=2)
    assert judge.judge(item) == judge.judge([item])[0]


def test_a_prompt_that_leaves_no_room_to_write_is_refused(item: Item, tmp_path: Path) -> None:
    judge = Judge.load(write_language_model(tmp_path, seed=0, max_position_embeddings=2048), max_completion_length=2)
    assert len(judge.judge([replace(item, prompt="Why?")])) == 1
    with pytest.raises(DataError, match=r"a prompt of \d+ tokens: the model takes 2048 together with what it writes"):
        judge.judge([replace(item, prompt="Why? " * 900)])
