"""Chats for any tokenizer and template, and a model's files in a directory or on the Hub."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from conftest import launch
from loopback import Answer, Received, answering
from reward_models.tiny import a_tokenizer, an_item, odd_tokenizer, write_language_model, write_model
from scpo.hand_worked import config as steered
from transformers import Qwen3ForCausalLM, Qwen3ForSequenceClassification

from think_as_locals.config.checks import load_recipe
from think_as_locals.engines import Chat
from think_as_locals.engines.engine import special_tokens
from think_as_locals.judging import CHAT_TOKENS, render
from think_as_locals.reward_models.implicit import ImplicitRM
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.scalar import ScalarRM
from think_as_locals.scpo.trainer import VariantTrainer
from think_as_locals.training import grpo
from think_as_locals.training.checkpoints import Checkpoints
from think_as_locals.training.cold_start import ColdStartTrainer
from think_as_locals.training.grpo import PromptDataset, load_chat
from think_as_locals.types import DataError, DataWarning, Demonstration, Item

THINKS = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content.split('</think>')[-1] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|><think>' }}{% endif %}"
)

REFUSES = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"
)

DROPS = (
    "{% for m in messages %}{% if m.role != 'system' %}{{ '<|' + m.role + '|>' + m.content }}{% endif %}{% endfor %}"
)


def chat(template: str, *added: str) -> Chat:
    tokenizer = a_tokenizer()
    tokenizer.chat_template = template
    tokenizer.add_tokens(list(added))
    return Chat(tokenizer)


@pytest.mark.parametrize("added", [("<think>", "</think>"), ()])
def test_special_tokens_include_marks_of_the_chat_template(added: tuple[str, ...]) -> None:
    thinking = chat(THINKS, *added, "<b>", "\n\n", "with palms")
    assert {"<think>", "</think>", "<|end|>"} <= set(thinking.special_tokens)
    assert not {"<b>", "\n\n", "with palms"} & set(thinking.special_tokens)
    assert "</think>" not in chat(REFUSES, *added).special_tokens


READ = [("In %?", "its control token '<|stop|>'"), ("So ¤/Verdict€.", "the reserved tag '</Verdict>.'")]


@pytest.mark.parametrize(("text", "found"), READ)
def test_check_texts_rejects_text_that_tokenizes_to_reserved_tokens(text: str, found: str) -> None:
    odd = Chat(odd_tokenizer())
    odd.check_texts([replace(an_item(1), prompt="<|stop|> here? <|STOP|> <verdict> ¤3 ¤b€")])
    message = f"item 'item-2': this model's tokenizer reads {found} in {text!r}"
    for changed in (replace(an_item(2), prompt=text), replace(an_item(2), responses=("Tea", text))):
        with pytest.raises(DataError, match=re.escape(message)):
            odd.check_texts([an_item(1), changed])


TRAINING: Any = load_recipe("recipes/quickstart.yaml")
NONE: Any = None
Reads = Callable[[str, Item], Any]
READERS: dict[str, Reads] = {
    "judge": lambda path, item: Judge.load(path).judge(item),
    "implicit": lambda path, item: ImplicitRM.load(path, None).score([item]),
    "GRPO": lambda path, item: PromptDataset(TRAINING, [item], ["mine"], load_chat(TRAINING, path)),
    "cold start": lambda path, item: ColdStartTrainer(
        *(TRAINING, TRAINING.sft, path, [Demonstration(item, (1, 0), "Tea.")], Checkpoints(Path(path) / "steps", 1))
    ),
}
SCORERS: dict[str, Reads] = {
    "scalar": lambda path, item: ScalarRM.load(path).score([item]),
    "SCPO": lambda path, item: VariantTrainer(steered(), NONE, NONE, NONE, ScalarRM.load(path), [item]),
    "SCPO as released": lambda path, item: VariantTrainer(
        steered("mode=as_released"), NONE, NONE, NONE, ScalarRM.load(path), [item]
    ),
}


@pytest.mark.parametrize("reads", READERS | SCORERS)
def test_every_model_and_trainer_rejects_items_with_reserved_tokens(reads: str, tmp_path: Path) -> None:
    kind = Qwen3ForCausalLM if reads in READERS else Qwen3ForSequenceClassification
    path = write_model(tmp_path, kind, 0, odd_tokenizer(), num_labels=1)
    for text, found in READ:
        with pytest.raises(DataError, match=re.escape(f"item 'item-1': this model's tokenizer reads {found}")):
            (READERS | SCORERS)[reads](path, replace(an_item(1, size=2), prompt=text))


def test_of_many_training_items_some_are_checked_at_once_and_others_when_accessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpo, "MAX_CHECKED", 3)
    monkeypatch.setattr(grpo, "_SAMPLE", 2)
    chat = load_chat(TRAINING, write_model(tmp_path, Qwen3ForCausalLM, 0, odd_tokenizer()))
    items = [an_item(number) for number in range(4)]
    odd = replace(items[3], prompt=READ[0][0])
    with pytest.raises(DataError, match="its control token"):
        PromptDataset(TRAINING, [*items[:2], odd, items[3]], ["mine"] * 4, chat)
    data = PromptDataset(TRAINING, [*items[:3], odd], ["mine"] * 4, chat)
    assert data[:3]["index"] == [0, 1, 2]
    with pytest.raises(DataError, match="its control token"):
        data[3]


@pytest.mark.parametrize("template", [REFUSES, DROPS])
def test_unsupported_system_turn_is_merged_into_the_user_turn(template: str) -> None:
    system, user = render(an_item(1))
    text = chat(template).text([system, user], add_generation_prompt=False)
    assert text == f"<|user|>{system['content']}\n\n{user['content']}"


@pytest.mark.parametrize(("declared", "ends"), [(None, set()), (3, {3}), ([3, 4], {3, 4})])
def test_eos_token_ids_join_tokenizer_and_model_config(
    declared: int | list[int] | None, ends: set[int], tmp_path: Path
) -> None:
    path = write_language_model(tmp_path, seed=0, eos_token_id=7)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": declared}))
    own = a_tokenizer().eos_token_id
    assert Chat.load(path, None, {}).eos_token_ids == {own, *ends}
    (tmp_path / "generation_config.json").unlink()
    assert Chat.load(path, None, {}).eos_token_ids == {own, 7}


FILES = {
    "/owner/judge/resolve/main/tal_judge.json": json.dumps({"prompt": "compact", "seed": 3}),
    "/owner/judge/resolve/main/tokenizer.json": json.dumps(
        {"added_tokens": [{"content": "<|end|>", "special": True}, {"content": "word", "special": False}]}
    ),
}

PROGRAM = """
import json, sys
from think_as_locals import Judge
from think_as_locals.types import DataError, ModelError

def found(path, **changes):
    try:
        judge = Judge.load(path, base_url="http://127.0.0.1:9/v1", **changes)
    except ModelError as error:
        return str(error)
    return [judge.settings.prompt, judge.settings.seed, list(judge.engine.special_tokens), judge.engine.model]

print(json.dumps([found("owner/judge"), found("owner/chat-model"), found("owner/gone"),
                  found("owner/gone", prompt="compact"), found("judge"), found("owner/judge", seed=9)]))
assert "torch" not in sys.modules
"""


def hub(request: Received) -> Answer:
    content = FILES.get(request.path, "")
    headers = {"ETag": f'"{sha256(content.encode()).hexdigest()}"', "X-Repo-Commit": "0" * 40}
    if content:
        return 200, content, headers
    return 404, "", {**headers, "X-Error-Code": "RepoNotFound" if "gone" in request.path else "EntryNotFound"}


def load_judges(home: Path, **environment: str) -> list[Any]:
    done = launch(sys.executable, "-c", PROGRAM, HF_HOME=str(home), **environment)
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers


def test_judge_settings_come_from_the_hub_or_its_cache(tmp_path: Path) -> None:
    with answering(hub) as url:
        online = load_judges(tmp_path, HF_ENDPOINT=url, HF_HUB_OFFLINE="0")
    judge, chat_model, gone, named, short, changed = online
    common = [*CHAT_TOKENS]  # where there is no tokenizer.json
    assert judge == ["compact", 3, ["<|end|>"], "owner/judge"]
    assert chat_model == ["listwise", 0, common, "owner/chat-model"]
    assert "'owner/gone' is not a directory, and the Hub has no tal_judge.json of it (RepositoryNotFoundError)" in gone
    assert "give the judge's prompt as well" in gone
    assert named == ["compact", 0, common, "owner/gone"]
    assert short == ["listwise", 0, common, "judge"]
    assert changed == ["compact", 9, ["<|end|>"], "owner/judge"]
    offline = load_judges(tmp_path, HF_HUB_OFFLINE="1")
    assert offline[:2] == online[:2]  # that a file is missing is known as well
    assert "(LocalEntryNotFoundError)" in offline[2]
    assert offline[3:] == online[3:]


@pytest.mark.parametrize(
    ("name", "content", "marks"),
    [
        ("tokenizer_config.json", json.dumps({"chat_template": "{{ m.split('</think>') }}"}), ("</think>",)),
        ("chat_template.jinja", "{{ m.split('</think>') }}", ("</think>",)),
    ],
)
def test_special_tokens_of_a_served_judge_include_template_marks(
    tmp_path: Path, name: str, content: str, marks: tuple[str, ...]
) -> None:
    (tmp_path / "tokenizer.json").write_text(FILES["/owner/judge/resolve/main/tokenizer.json"])
    (tmp_path / name).write_text(content)
    assert special_tokens(str(tmp_path)) == (*marks, "<|end|>")


def test_template_that_writes_the_date_is_warned_of(tmp_path: Path) -> None:
    tokenizer = a_tokenizer()
    tokenizer.chat_template = (
        "{{ date_string or strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    path = write_language_model(tmp_path, seed=0)
    tokenizer.save_pretrained(path)
    with pytest.warns(DataWarning, match="its chat template writes today's date"):
        Chat.load(path, None, {})
    fixed = Chat.load(path, None, {"date_string": "26 Jul 2024"})
    assert fixed.text([{"role": "user", "content": "?"}], add_generation_prompt=True) == "26 Jul 2024?"
