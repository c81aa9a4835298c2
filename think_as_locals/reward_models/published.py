"""Published scalar reward models with heads that transformers lacks: weights are loaded, their own code never runs.

| family | architecture in config.json | head |
|---|---|---|
| INF-ORM | INFORMForSequenceClassification | two linear layers on the last token |
| ArmoRM, QRM | ...ForRewardModelWithGating, ...ForQuantileSequenceClassification | objectives, weighed by a gate |
| InternLM2-reward | InternLM2ForRewardModel | one linear layer on a reward token behind the text |

Skywork-Reward and most others are plain classifiers, which need none of this.
Sources: RewardBench 2 (arXiv 2506.01937), ArmoRM (arXiv 2406.12845), QRM (arXiv 2409.10164), InternLM2 (arXiv
2403.17297).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor, nn
from transformers import (
    AutoModel,
    Gemma2Config,
    Gemma2PreTrainedModel,
    LlamaConfig,
    LlamaForSequenceClassification,
    LlamaPreTrainedModel,
    PreTrainedConfig,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from think_as_locals.types import ModelError, first_of

_COMMIT = re.compile("[0-9a-f]{40}")
_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")  # no Python file is even downloaded

# What stands between a prompt and its response, as tokens of each family: the gate reads the first of them.
_END_OF_PROMPT = {
    "llama": [128009, 128006, 78191, 128007, 271],  # <|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n
    "gemma2": [107, 108, 106, 2516, 108],  # <end_of_turn>\n<start_of_turn>model\n
}
_GATE_TEMPERATURE = {"llama": 10.0, "gemma2": 1.0}  # of the published code, where config.json does not say


class MLPClassifier(LlamaForSequenceClassification):
    """Llama with a hidden layer before the score (INF-ORM)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        self.post_init()


class Gate(nn.Module):
    """The weight of each objective, from the last hidden state of the prompt (B, H) -> (B, objectives).

    Layers keep their numbers in the checkpoint, which counts ReLU and dropout too.
    """

    def __init__(self, shapes: dict[str, list[int]], temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.logit_scale = nn.Parameter(torch.ones(1))
        self.layers = nn.ModuleDict()
        for number in sorted({int(name.split(".")[1]) for name in shapes if name.startswith("layers.")}):
            width, *inputs = shapes[f"layers.{number}.weight"]
            normalises = f"layers.{number}.running_mean" in shapes
            bias = f"layers.{number}.bias" in shapes
            layer = nn.BatchNorm1d(width) if normalises else nn.Linear(inputs[0], width, bias=bias)
            self.layers[str(number)] = layer

    def forward(self, states: Tensor) -> Tensor:
        *hidden, last = self.layers.values()
        for layer in hidden:
            states = layer(states)
            if isinstance(layer, nn.Linear):
                states = states.relu()
        weights: Tensor = torch.softmax(last(states) / self.temperature, dim=-1) * self.logit_scale
        return weights


class _GatedClassifier:
    """Several objectives (for QRM: several quantiles of each), weighed by a gate that reads the prompt alone."""

    _keep_in_fp32_modules_strict = {"regression_layer", "gating", "reward_transform_matrix"}  # noqa: RUF012

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        shapes = config.head_shapes
        self.model = AutoModel.from_config(config)
        outputs, width = shapes["regression_layer.weight"]
        self.regression_layer = nn.Linear(width, outputs, bias=False)
        of_gate = {name.removeprefix("gating."): shape for name, shape in shapes.items() if name.startswith("gating.")}
        self.gating = Gate(of_gate, config.gating_temperature)
        self.reward_transform_matrix = None
        if shape := shapes.get("reward_transform_matrix"):
            self.reward_transform_matrix = nn.Parameter(torch.zeros(shape), requires_grad=False)
        self.post_init()  # type: ignore[attr-defined]

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> SequenceClassifierOutput:
        """Return the scores of rows padded on the right, (B, L) -> (B, 1)."""
        states = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state.float()
        lengths = torch.full((len(input_ids),), input_ids.shape[1]) if attention_mask is None else attention_mask.sum(1)
        rows = torch.arange(len(input_ids), device=states.device)
        ends = torch.tensor([_end_of_prompt(ids, self.config.model_type) for ids in input_ids.tolist()])  # type: ignore[attr-defined]
        weights = self.gating(states[rows, ends.to(states.device)])
        outputs = self.regression_layer(states[rows, lengths.to(states.device) - 1])
        rewards = outputs.view(len(rows), weights.shape[1], -1).mean(-1)  # over the quantiles
        if self.reward_transform_matrix is not None:
            rewards = rewards @ self.reward_transform_matrix.to(rewards.device)  # split models may have it elsewhere
        return SequenceClassifierOutput(logits=(weights * rewards).sum(-1, keepdim=True))


class GatedLlama(_GatedClassifier, LlamaPreTrainedModel):
    """ArmoRM and QRM on Llama."""


class GatedGemma2(_GatedClassifier, Gemma2PreTrainedModel):
    """QRM on Gemma 2."""


def _end_of_prompt(ids: list[int], family: str) -> int:
    """Return where the prompt ends: the last place with these tokens, as responses are neutralised before."""
    pattern = _END_OF_PROMPT[family]
    for start in range(len(ids) - len(pattern), -1, -1):
        if ids[start : start + len(pattern)] == pattern:
            return start
    raise ModelError(
        f"the end of the prompt (tokens {pattern}) is nowhere in a rendered conversation, so the gate has nothing to "
        f"read: is the tokenizer's chat template that of {family}?"
    )


def architecture(settings: dict[str, Any]) -> str | None:
    """Return the architecture that a config.json names, if its head is one of this module's."""
    name = (settings.get("architectures") or [""])[0]
    gated = re.fullmatch("(Llama|Gemma2)For(RewardModelWithGating|QuantileSequenceClassification)", name)
    return name if gated or name in ("INFORMForSequenceClassification", "InternLM2ForRewardModel") else None


def load_published(path: str, revision: str | None, dtype: str, device_map: str | None = None) -> Any:
    """Load a reward model with a head of its own; a ModelError says what its weights or its revision lack.

    `revision` is a full commit on the Hub. `dtype` is that of the weights below the head: the heads of ArmoRM and QRM
    compute in float32.
    """
    folder = _folder(path, revision)
    settings, _ = PreTrainedConfig.get_config_dict(folder)
    name = architecture(settings)
    settings.pop("auto_map", None)
    options: dict[str, Any] = {"dtype": dtype, "device_map": device_map, "output_loading_info": True}
    if name == "InternLM2ForRewardModel":
        config = _llama_config(settings)
        tensors = ((name, file.get_tensor(name)) for name, file in _stored(path, folder))
        state = dict(_as_llama(tensors, config))
        model, info = LlamaForSequenceClassification.from_pretrained(None, config=config, state_dict=state, **options)
    else:
        kind: Any = MLPClassifier
        config = (Gemma2Config if settings["model_type"] == "gemma2" else LlamaConfig).from_dict(settings)
        config.num_labels = 1
        if name != "INFORMForSequenceClassification":
            kind = GatedGemma2 if isinstance(config, Gemma2Config) else GatedLlama
            config.gating_temperature = settings.get("gating_temperature", _GATE_TEMPERATURE[config.model_type])
            stored = _stored(path, folder)  # those of the decoder begin with "model."
            config.head_shapes = {n: f.get_slice(n).get_shape() for n, f in stored if not n.startswith("model.")}
        model, info = kind.from_pretrained(folder, config=config, use_safetensors=True, **options)
    if lost := sorted({*info["missing_keys"], *info["unexpected_keys"]}):
        raise ModelError(
            f"{path}: weights that {name} lacks or does not have: {first_of(lost, 5)}; "
            "is this the published model, at the commit that was meant?"
        )
    model.config._commit_hash = revision
    return model


def _folder(path: str, revision: str | None) -> Path:
    """Return the directory of a model's weights and tokenizer, downloaded if need be."""
    if (folder := Path(path).expanduser()).is_dir():
        return folder
    if not revision or not _COMMIT.fullmatch(revision):
        raise ModelError(
            f"{path} has a head that transformers does not have: revision is {revision!r}, expected the commit that "
            f"you checked, 40 hexadecimal digits (in the history of the files at https://huggingface.co/{path})"
        )
    return Path(snapshot_download(path, revision=revision, allow_patterns=list(_FILES)))


def _stored(path: str, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the name of each weight in a directory, with the open file that has it."""
    if not (files := sorted(folder.glob("*.safetensors"))):
        raise ModelError(f"{path} has no *.safetensors: only these are read, as other files of weights can run code")
    for name in files:
        with safe_open(name, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118  # not a dict
                yield key, file


def _llama_config(settings: dict[str, Any]) -> LlamaConfig:
    """Return the configuration of the Llama that computes what an InternLM2 does.

    Its scaling of positions beyond `max_position_embeddings` is left out: longer texts are refused.
    """
    same = (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "hidden_act", "max_position_embeddings", "rms_norm_eps"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range"),
    )
    return LlamaConfig(
        **{name: settings[name] for name in same if name in settings},
        rope_parameters={"rope_type": "default", "rope_theta": settings.get("rope_theta", 10000)},
        reward_token_id=settings["reward_token_id"],
        num_labels=1,
        dtype=settings.get("torch_dtype", settings.get("dtype")),
    )


def _as_llama(tensors: Iterator[tuple[str, Tensor]], config: LlamaConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield an InternLM2's weights under the names of a Llama.

    Queries, keys and values are one matrix there: for each key head, its query heads, then its key, then its value.
    """
    names = {
        "tok_embeddings": "embed_tokens",
        "attention.wo": "self_attn.o_proj",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w3": "mlp.up_proj",
        "feed_forward.w2": "mlp.down_proj",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "v_head": "score",
    }
    pattern = re.compile("|".join(map(re.escape, names)))
    queries = config.num_attention_heads // config.num_key_value_heads
    for name, tensor in tensors:
        if not name.endswith("attention.wqkv.weight"):
            yield pattern.sub(lambda match: names[match[0]], name), tensor
            continue
        heads = tensor.view(config.num_key_value_heads, queries + 2, -1, tensor.shape[-1])
        for kind, part in zip("qkv", (heads[:, :queries], heads[:, queries], heads[:, queries + 1]), strict=True):
            of_layer = name.replace("attention.wqkv", f"self_attn.{kind}_proj")
            yield of_layer, part.reshape(-1, tensor.shape[-1]).contiguous()
