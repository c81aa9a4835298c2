"""Heads of published reward models: scores match their definitions, computed row by row in plain torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Tal
from reward_models.tiny import ITEMS
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import batch_norm, linear, softmax
from transformers import Gemma2Config, Gemma2Model, LlamaConfig, LlamaModel, PreTrainedTokenizerFast

from think_as_locals.reward_models.published import load_published
from think_as_locals.reward_models.scalar import ScalarRM
from think_as_locals.types import ModelError

Definition = Callable[[list[int]], float]  # the score of a row of tokens
BETWEEN_TURNS = {
    "llama": {
        "<|eot_id|>": 128009,
        "<|start_header_id|>": 128006,
        "assistant": 78191,
        "<|end_header_id|>": 128007,
        "//": 271,
    },
    "gemma2": {"<end_of_turn>": 107, "/": 108, "<start_of_turn>": 106, "assistant": 2516},
}
TURN = {
    "llama": "<|start_header_id|> {{ m.role }} <|end_header_id|> // {{ m.content }} <|eot_id|>",
    "gemma2": "<start_of_turn> {{ m.role }} / {{ m.content }} <end_of_turn> /",
}
END_OF_PROMPT = {"llama": [128009, 128006, 78191, 128007, 271], "gemma2": [107, 108, 106, 2516, 108]}
REWARD_TOKEN = 9


def a_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A tokenizer of words; what stands between turns has the numbers that it has in the published models."""
    words = sorted({word for item in ITEMS for text in (item.prompt, *item.responses) for word in text.split()})
    numbers = {"[UNK]": 0, "[PAD]": 1, "user": 2, **{word: 300 + i for i, word in enumerate(words)}}
    tokenizer = Tokenizer(models.WordLevel(numbers | BETWEEN_TURNS[family], unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")  # noqa: S106
    fast.chat_template = "{% for m in messages %}" + TURN[family] + "{{ ' ' }}{% endfor %}"
    return fast


def a_decoder(family: str = "llama") -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "initializer_range": 0.3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128}
    torch.manual_seed(0)
    if family == "llama":
        return LlamaModel(LlamaConfig(vocab_size=128010, pad_token_id=1, **sizes, **heads)).eval()
    more = {"query_pre_attn_scalar": 8, "attn_implementation": "eager"}  # SDPA does not cap the scores of attention
    return Gemma2Model(Gemma2Config(vocab_size=2600, pad_token_id=1, **more, **sizes, **heads)).eval()


def write(folder: Path, decoder: Any, head: dict[str, Tensor], **settings: Any) -> Path:
    """Store weights as they are published: the decoder's below `model.`, those of the head beside them."""
    folder.mkdir()
    weights = {f"model.{name}": tensor.clone() for name, tensor in decoder.state_dict().items()}
    save_file(weights | head, folder / "model.safetensors", metadata={"format": "pt"})
    own_code = {"auto_map": {"AutoModelForSequenceClassification": "modeling_custom.Own"}}
    config = {**decoder.config.to_dict(), **own_code, **settings}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_custom.py").write_text("raise SystemExit('code of a model ran')")
    a_tokenizer(decoder.config.model_type).save_pretrained(folder)
    return folder


def inf_orm(folder: Path) -> tuple[Path, Definition]:
    decoder, width = a_decoder(), 32
    head = {
        "score.0.weight": torch.randn(width, width),
        "score.0.bias": torch.randn(width),
        "score.2.weight": torch.randn(1, width),
        "score.2.bias": torch.randn(1),
    }

    def score(ids: list[int]) -> float:
        last = decoder(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        hidden = linear(last, head["score.0.weight"], head["score.0.bias"]).clamp(min=0)
        return float(linear(hidden, head["score.2.weight"], head["score.2.bias"]))

    return write(folder, decoder, head, architectures=["INFORMForSequenceClassification"]), score


def gated(folder: Path, family: str, name: str, quantiles: int, *, normalised: bool) -> tuple[Path, Definition]:
    """ArmoRM (one value per objective, linear gate layers) or QRM (quantiles, batch norms and dropout between)."""
    decoder, width, objectives = a_decoder(family), 32, 5
    head = {"regression_layer.weight": torch.randn(objectives * quantiles, width)}
    head["gating.logit_scale"] = torch.tensor([1.3])
    if not normalised or family == "llama":
        head["reward_transform_matrix"] = torch.randn(objectives, objectives)
    places = [0, 4, 8, 11] if normalised else [0, 1, 2, 3]  # of the linear layers
    sizes = [width, 16, 16, 16, objectives]
    for place, inputs, outputs in zip(places, sizes, sizes[1:], strict=False):
        head[f"gating.layers.{place}.weight"] = torch.randn(outputs, inputs)
        if place == places[-1] or not normalised:
            head[f"gating.layers.{place}.bias"] = torch.randn(outputs)
        elif normalised:
            after = f"gating.layers.{place + 2}"
            head |= {f"{after}.{part}": torch.randn(outputs) for part in ("weight", "bias", "running_mean")}
            head |= {f"{after}.running_var": torch.rand(outputs) + 0.5, f"{after}.num_batches_tracked": torch.tensor(7)}

    def score(ids: list[int]) -> float:
        states = decoder(input_ids=torch.tensor([ids])).last_hidden_state[0]
        pattern = END_OF_PROMPT[family]
        (place,) = (i for i in range(len(ids)) if ids[i : i + len(pattern)] == pattern)
        gate = states[place][None]
        for number in places:
            gate = linear(gate, head[f"gating.layers.{number}.weight"], head.get(f"gating.layers.{number}.bias"))
            if number != places[-1]:
                gate = gate.clamp(min=0)
                if normalised:
                    parts = ("running_mean", "running_var", "weight", "bias")
                    gate = batch_norm(gate, *(head[f"gating.layers.{number + 2}.{part}"] for part in parts))
        weights = softmax(gate[0] / 10, dim=-1) * head["gating.logit_scale"]
        rewards = (head["regression_layer.weight"] @ states[-1]).view(objectives, quantiles).mean(-1)
        return float(weights @ (rewards @ head.get("reward_transform_matrix", torch.eye(objectives))))

    return write(folder, decoder, head, architectures=[name], gating_temperature=10), score


def internlm2(folder: Path) -> tuple[Path, Definition]:
    """A Llama stored as InternLM2 stores one: the rows of wqkv are, for each key head, its queries, key and value."""
    decoder, head = a_decoder(), {"v_head.weight": torch.randn(1, 32)}

    def score(ids: list[int]) -> float:
        return float(head["v_head.weight"] @ decoder(input_ids=torch.tensor([ids])).last_hidden_state[0, -1])

    write(folder, decoder, head)
    names = {
        "model.tok_embeddings.weight": "model.embed_tokens.weight",
        "model.norm.weight": "model.norm.weight",
        "v_head.weight": "v_head.weight",
    }
    weights = load_file(folder / "model.safetensors")
    stored = {there: weights[here] for there, here in names.items()}
    for layer in ("model.layers.0.", "model.layers.1."):
        q, k, v = (weights[f"{layer}self_attn.{kind}_proj.weight"] for kind in "qkv")
        of_key_heads = [
            torch.cat([q[16 * i : 16 * i + 16], k[8 * i : 8 * i + 8], v[8 * i : 8 * i + 8]]) for i in (0, 1)
        ]
        stored[f"{layer}attention.wqkv.weight"] = torch.cat(of_key_heads)
        stored[f"{layer}attention.wo.weight"] = weights[f"{layer}self_attn.o_proj.weight"]
        stored[f"{layer}attention_norm.weight"] = weights[f"{layer}input_layernorm.weight"]
        stored[f"{layer}ffn_norm.weight"] = weights[f"{layer}post_attention_layernorm.weight"]
        for there, here in (("w1", "gate"), ("w3", "up"), ("w2", "down")):
            stored[f"{layer}feed_forward.{there}.weight"] = weights[f"{layer}mlp.{here}_proj.weight"]
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    del config["head_dim"], config["rope_parameters"]
    own = {"model_type": "internlm2", "architectures": ["InternLM2ForRewardModel"], "reward_token_id": REWARD_TOKEN}
    more = {"rope_theta": 10000, "rope_scaling": {"type": "dynamic", "factor": 2.0}, "bias": False}
    (folder / "config.json").write_text(json.dumps(config | own | more))
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer |= {"tokenizer_class": "InternLM2Tokenizer"}
    tokenizer |= {"auto_map": {"AutoTokenizer": ["tokenization_internlm2.InternLM2Tokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return folder, score


FAMILIES: dict[str, Callable[[Path], tuple[Path, Definition]]] = {
    "INF-ORM": inf_orm,
    "ArmoRM": lambda folder: gated(folder, "llama", "LlamaForRewardModelWithGating", 1, normalised=False),
    "QRM-Llama": lambda folder: gated(folder, "llama", "LlamaForRewardModelWithGating", 3, normalised=True),
    "QRM-Gemma2": lambda folder: gated(folder, "gemma2", "Gemma2ForQuantileSequenceClassification", 3, normalised=True),
    "InternLM2": internlm2,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_match_the_definition_of_the_head(family: str, tmp_path: Path, tal: Tal) -> None:
    path, score = FAMILIES[family](tmp_path / "model")
    rm = ScalarRM.load(str(path), batch_size=5)
    tokenizer = a_tokenizer("gemma2" if family == "QRM-Gemma2" else "llama")
    expected = []
    for item in ITEMS:
        for response in item.responses:
            turns = [{"role": "user", "content": item.prompt}, {"role": "assistant", "content": response}]
            ids = tokenizer(tokenizer.apply_chat_template(turns, tokenize=False), add_special_tokens=False)["input_ids"]
            with torch.inference_mode():
                expected.append(score([*ids, REWARD_TOKEN] if family == "InternLM2" else ids))
    found = [score for scores in rm.score(ITEMS) for score in scores]
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert max(expected) - min(expected) > 0.1  # else any order would do
    one = ["--prompt", ITEMS[0].prompt, "--response", ITEMS[0].responses[0], "--response", ITEMS[0].responses[1]]
    judged = tal("judge", str(path), *one, "--json")
    assert json.loads(judged.out)["scores"] == pytest.approx(expected[:2], rel=1e-4, abs=1e-4)
    assert (rm.unshared_reason is None) == (family in ("INF-ORM", "InternLM2"))


def test_published_model_needs_a_commit_and_exact_safetensors(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"revision is 'main', expected the commit .* 40 hexadecimal digits"):
        load_published("infly/INF-ORM-Llama3.1-70B", "main", "auto")
    path, _ = inf_orm(tmp_path / "model")
    weights = load_file(path / "model.safetensors")
    for name, message in (("score.2.bias", r"lacks or does not have: score\.2\.bias"), ("", r"lacks .*: score\.9")):
        changed = {key: tensor for key, tensor in weights.items() if key != name}
        changed |= {} if name else {"score.9": torch.zeros(1)}
        save_file(changed, path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelError, match=message):
            ScalarRM.load(str(path))
    path, _ = internlm2(tmp_path / "pickled")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no \*\.safetensors"):
        load_published(str(path), None, "auto")


def test_gated_head_needs_the_end_of_the_prompt(tmp_path: Path) -> None:
    path, _ = FAMILIES["ArmoRM"](tmp_path / "model")
    (path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{{ ' ' }}{% endfor %}")
    with pytest.raises(ModelError, match=r"the end of the prompt .* is nowhere"):
        ScalarRM.load(str(path)).score(ITEMS[:1])
