"""Memory estimates, against published figures and a measured training run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, SMALL
from peft import LoraConfig, get_peft_model
from reward_models.tiny import write_language_model
from safetensors import safe_open
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    DebertaV2Config,
    LlamaConfig,
    MambaConfig,
    MixtralConfig,
    ModernBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Starcoder2Config,
    T5Config,
)

from think_as_locals.config.checks import load_config, load_recipe
from think_as_locals.config.launch import Launch, read_launch
from think_as_locals.config.model_schema import PolicyConfig
from think_as_locals.config.schema import RunConfig, ScpoConfig
from think_as_locals.engines import packing
from think_as_locals.machine import memory
from think_as_locals.machine.memory import GB, USABLE, Counts, Layer, count, engine, engine_share, estimate, gpu_needed
from think_as_locals.types import ConfigError

ONE = Launch("NO", 0, 1)
EIGHT = Launch("DEEPSPEED", 3, 8)
STATES = ("weights", "gradients", "optimizer")


def a_run(*overrides: str) -> RunConfig:
    return load_recipe("recipes/tal_grpo.yaml", ["run.name=mine", *overrides])


def of_size(parameters: int, trained: int | None = None, positions: int = 32_768) -> Counts:
    return Counts(parameters, trained or parameters, 4096, 32, 32, positions, 2 * 32 * 8 * 128)


def a_model(folder: Path) -> str:
    """The config.json of Qwen2.5-7B's architecture, as published; no weights."""
    sizes = {"hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28, "num_attention_heads": 28}
    Qwen2Config(vocab_size=152_064, num_key_value_heads=4, tie_word_embeddings=False, **sizes).save_pretrained(folder)
    return str(folder)


def test_qwen_parameters_are_counted_exactly(tmp_path: Path) -> None:
    cached, head, layer = 2 * 28 * 4 * 128, 152_064 * 3584, Layer(3584, 512, 18_944, True, False)
    expected = Counts(7_615_616_512, 7_615_616_512, 3584, 28, 28, 32_768, cached, head, layer=layer)
    assert count(a_run(f"model.path={a_model(tmp_path)}")) == expected


def test_model_of_another_architecture_kind_is_rejected(tmp_path: Path) -> None:
    T5Config(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="transformers has no AutoModelForCausalLM for t5"):
        count(a_run(f"model.path={tmp_path}"))
    assert count(steered(f"model.path={tmp_path}")).positions == 1024  # it declares none


def test_model_without_attention_is_counted(tmp_path: Path) -> None:
    MambaConfig(vocab_size=200, hidden_size=32, num_hidden_layers=2).save_pretrained(tmp_path)
    counts = count(a_run(f"model.path={tmp_path}"))
    assert (counts.heads, counts.layer) == (0, None)


def test_embedding_of_twice_the_intermediate_width_is_no_gate(tmp_path: Path) -> None:
    few = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    Starcoder2Config(**few, vocab_size=128, intermediate_size=64).save_pretrained(tmp_path)
    layer = count(a_run(f"model.path={tmp_path}")).layer
    assert layer is not None
    assert (layer.intermediate, layer.gated) == (64, False)


def test_experts_of_a_token_are_one_wide_layer(tmp_path: Path) -> None:
    few = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    MixtralConfig(**few, intermediate_size=64, num_experts_per_tok=3, num_local_experts=4).save_pretrained(tmp_path)
    layer = count(a_run(f"model.path={tmp_path}")).layer
    assert layer is not None
    assert (layer.intermediate, layer.gated) == (192, True)


def test_adapter_parameters_match_peft(tmp_path: Path) -> None:
    found = count(a_run(f"model.path={a_model(tmp_path)}", "lora=rank16"))
    heads, wide = 28 * 128, 4 * 128
    layer = 2 * (3584 + heads) + 2 * (3584 + wide) + 3 * (3584 + 18_944)  # q and o, k and v, the feed-forward ones
    assert found.trained == 28 * 16 * layer
    assert found.parameters == 7_615_616_512 + found.trained


def test_missing_model_config_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"nobody/nothing: its config\.json is not on this machine"):
        count(a_run("model.path=nobody/nothing"))


@pytest.mark.parametrize(
    ("launch", "gigabytes"),
    [  # figure 1 of the ZeRO paper: 7.5 B parameters on 64 GPUs; torch's own AdamW below
        (Launch("DEEPSPEED", 0, 64), (15, 15, 90)),
        (Launch("DEEPSPEED", 1, 64), (15, 15, 90 / 64)),
        (Launch("DEEPSPEED", 2, 64), (15, 15 / 64, 90 / 64)),
        (Launch("DEEPSPEED", 3, 64), (15 / 64, 15 / 64, 90 / 64)),
        (Launch("FSDP", 3, 64), (30 / 64, 30 / 64, 60 / 64)),
        (Launch("NO", 0, 1), (30, 30, 60)),
        (Launch("MULTI_GPU", 0, 64), (30, 60, 60)),
    ],
    ids=str,
)
def test_states_are_sharded_as_in_the_zero_paper(launch: Launch, gigabytes: tuple[float, ...]) -> None:
    parts = estimate(a_run(), launch, of_size(7_500_000_000))
    assert tuple(parts[name] / 1e9 for name in STATES) == pytest.approx(gigabytes)


def test_adapter_has_its_own_states_and_no_reference_model() -> None:
    parts = estimate(a_run("lora=rank16"), Launch("DEEPSPEED", 2, 8), of_size(7_040_000_000, 40_000_000))
    assert parts["weights"] == pytest.approx(7e9 * 2 + 4e7 * 4)
    assert parts["optimizer"] == pytest.approx(4e7 * 12 / 8)
    assert parts["reference model"] == 0


@pytest.mark.parametrize(
    ("launch", "overrides", "copies"),
    [
        (Launch("DEEPSPEED", 3, 8), [], 2),  # and its gradient
        (Launch("DEEPSPEED", 3, 8), ["lora=rank16"], 1),
        (ONE, [], 0),  # its weights are float32 already
        (ONE, ["lora=rank16"], 1),
        (Launch("DEEPSPEED", 3, 8), ["grpo.cast_lm_head_to_fp32=false"], 0),
    ],
    ids=str,
)
def test_float32_lm_head_copies_are_counted(launch: Launch, overrides: list[str], copies: int) -> None:
    counts = replace(of_size(7_000_000_000), head=152_064 * 3584)
    assert estimate(a_run(*overrides), launch, counts)["float32 head"] == copies * 4 * 152_064 * 3584


def test_reward_model_of_a_policy_is_counted_in_its_own_dtype(tmp_path: Path) -> None:
    policy = [f"model.path={a_model(tmp_path / 'policy')}", f"rm.path={a_model(tmp_path / 'rm')}"]
    config = load_config("recipes/policy_grpo.yaml", ["run.name=mine", *policy, "rm.dtype=bfloat16"])
    assert isinstance(config, PolicyConfig)
    counts = count(config)
    assert estimate(config, ONE, counts)["reward model"] == 2 * (7_615_616_512 - counts.head)  # another head, not this


def test_gradient_checkpointing_and_vllm_share_change_the_estimate() -> None:
    counts, without = of_size(7_500_000_000), "grpo.gradient_checkpointing=false"
    plain = estimate(a_run(without), EIGHT, counts)["activations"]
    kept = estimate(a_run(), EIGHT, counts)["activations"]
    assert plain / kept == pytest.approx(32 * 17 / (32 + 17))
    # Float32 weights, of which autocast makes copies, and a float32 residual stream.
    copies, unit = 2 * 7.5e9, kept / (2 * (32 + 17))
    assert estimate(a_run(), ONE, counts)["activations"] == pytest.approx(4 * 32 * unit + copies)
    assert estimate(a_run(without), ONE, counts)["activations"] == pytest.approx(plain + copies)
    assert estimate(a_run("grpo.beta=0.0"), ONE, counts)["reference model"] == 0
    parts, half = {"weights": 7.0}, ["rollout.gpu_memory_utilization=0.3"]
    assert gpu_needed(a_run("rollout=vllm_server"), parts, {}) == pytest.approx(7 / USABLE)
    assert gpu_needed(a_run(*half), parts, {"vLLM's weights": 1.0}) == pytest.approx(7 / (USABLE - 0.3))
    assert gpu_needed(a_run(*half), parts, {"vLLM's weights": 6.0}) == pytest.approx(20)  # it has to start
    assert gpu_needed(a_run(), parts, {"vLLM's weights": 6.0}) == pytest.approx(13 / USABLE)


def test_vllm_share_must_hold_the_model_and_one_sequence() -> None:
    """Qwen2.5-14B on 80 GB with a share of 0.3 cannot start, however training is divided."""
    counts = Counts(14_770_033_664, 14_770_033_664, 5120, 48, 40, 32_768, 2 * 48 * 8 * 128)
    parts = {name: size / GB for name, size in engine(a_run("rollout.max_model_length=32768"), counts).items()}
    assert parts == pytest.approx({"vLLM's weights": 29.5, "vLLM's cache": 6.44, "vLLM's work": 2}, rel=0.01)
    fixed = "rollout.gpu_memory_utilization=0.3"
    for overrides, needed in (([fixed, "rollout.max_model_length=32768"], 126), ([fixed], 107), ([], 81.9)):
        run = a_run(*overrides)
        found = gpu_needed(run, estimate(run, EIGHT, counts), engine(run, counts)) / GB
        assert found == pytest.approx(needed, rel=0.01), overrides
    assert engine(a_run("grpo.vllm_tensor_parallel_size=2"), counts)["vLLM's weights"] == 14_770_033_664
    assert engine(a_run("rollout=transformers"), counts) == {}


def test_engine_share_fits_model_and_gpu() -> None:
    counts, run = of_size(7_500_000_000), a_run()
    parts = estimate(run, EIGHT, counts)
    least, training = sum(engine(run, counts).values()), sum(parts.values())
    for gpu in (40e9, 48e9, 80e9, 141e9):
        share = engine_share(run, counts, parts, gpu)
        if least + training > USABLE * gpu:
            assert share is None
        else:
            assert share is not None
            assert least <= share * gpu
            assert share * gpu + training < (USABLE + 0.011) * gpu
    assert engine_share(run, counts, parts, 40e9) is None
    # Room for keys and values of all rollouts of a step is enough: 64 of 3,072 tokens.
    assert engine_share(run, counts, parts, 400e9) == pytest.approx(
        (least + 64 * 3072 * 2 * counts.cached) / 400e9, abs=0.01
    )


@pytest.mark.parametrize("file", sorted((ROOT / "launch").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_launch_file_is_parsed(file: Path) -> None:
    found = read_launch(file)
    stages = {"zero2": 2, "zero3": 3, "fsdp2": 3}
    assert found.zero_stage == stages.get(file.stem.rpartition("_")[2], 0)
    assert found.processes == {"single": 1, "cpu": 2, "gpu8": 8, "nodes": 16}[file.stem.partition("_")[0]]


@pytest.mark.slow
def test_weights_and_optimizer_match_a_training_run(small_run: Path) -> None:
    model = small_run / "model"
    config = load_recipe("recipes/quickstart.yaml", [*SMALL, f"model.path={model}", "model.scratch=null", "sft=null"])
    parts = estimate(config, ONE, count(config))
    with safe_open(model / "model.safetensors", "pt") as file:
        weights = sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118
    newest = max((small_run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    states = torch.load(newest / "optimizer.pt", weights_only=True)["state"].values()
    optimizer = sum(moment.nbytes for state in states for moment in state.values())
    assert parts["weights"] == pytest.approx(weights, rel=0.01)
    assert parts["optimizer"] == pytest.approx(optimizer, rel=0.01)


def test_gradients_and_optimizer_match_a_training_step(tmp_path: Path) -> None:
    path = write_language_model(tmp_path, 0, hidden_size=64, intermediate_size=256)
    config = load_recipe("recipes/quickstart.yaml", [f"model.path={path}", "model.scratch=null", "sft=null"])
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.arange(8)[None]
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    parts = estimate(config, ONE, count(config))
    assert parts["gradients"] == pytest.approx(sum(p.grad.nbytes for p in model.parameters()), rel=0.01)
    moments = [moment.nbytes for state in optimizer.state.values() for moment in state.values()]
    assert parts["optimizer"] == pytest.approx(sum(moments), rel=0.01)


# --- a reward model that is steered ---


def steered(*overrides: str) -> ScpoConfig:
    config = load_config("recipes/scpo_prism.yaml", ["run.name=mine", "data.path=x", *overrides])
    assert isinstance(config, ScpoConfig)
    return config


def deberta(**sizes: Any) -> DebertaV2Config:
    """DeBERTa v3's architecture."""
    known = {"relative_attention": True, "position_buckets": 256, "max_relative_positions": -1, "type_vocab_size": 0}
    more = {"pos_att_type": ["p2c", "c2p"], "share_att_key": True, "position_biased_input": False}
    return DebertaV2Config(**known, **more, norm_rel_ebd="layer_norm", pooler_dropout=0, **sizes)


def test_deberta_parameters_are_counted_exactly(tmp_path: Path) -> None:
    sizes = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    deberta(vocab_size=128_100, **sizes).save_pretrained(tmp_path)
    counts = count(steered(path := f"model.path={tmp_path}"))
    layer = Layer(768, 768, 3072, False, False)
    published = 183_831_552 + 768 * 769 + 769  # DeBERTa v3 base, its pooler, one label
    assert counts == Counts(published, published, 768, 12, 12, 512, 2 * 12 * 768, layer=layer)
    adapted = count(steered(path, "lora=rank16"))
    assert published < adapted.parameters < published + adapted.trained + 1
    assert adapted.trained > 768  # the adapter, and the head


def test_global_rm_is_counted_unsharded() -> None:
    counts = of_size(8_000_000_000)
    big = ["model=tulu3_8b_rm"]
    parts = estimate(steered(*big), EIGHT, counts)
    assert {name: size / 1e9 for name, size in parts.items() if name != "activations"} == {
        "weights": 2,
        "gradients": 2,
        "optimizer": 12,
        "global RM": 16,
    }
    assert gpu_needed(steered(*big), parts, engine(steered(*big), counts)) == sum(parts.values()) / USABLE
    adapter = of_size(8_040_000_000, 40_000_000)
    assert estimate(steered(*big, "lora=rank16"), ONE, adapter)["global RM"] == 16e9


def test_pair_length_comes_from_the_recipe_or_the_model() -> None:
    def needed(positions: int, *overrides: str) -> float:
        counts = of_size(8_000_000_000, positions=positions)
        return estimate(steered("model=tulu3_8b_rm", *overrides), Launch("DEEPSPEED", 3, 1), counts)["activations"]

    assert needed(131_072) == needed(1024) == 2 * needed(512) == needed(131_072, "scpo.max_length=1024")
    assert needed(4096, "scpo.max_length=4096") == 4 * needed(4096)
    more = "scpo.batch_size=16", "scpo.per_device_train_batch_size=16"
    assert needed(512, *more) == 2 * needed(512) == 2 * needed(512, more[1])
    assert needed(512) / needed(512, "scpo.gradient_checkpointing=true") == pytest.approx(32 * 17 / (32 + 17))


def test_pooled_global_rm_activations_follow_its_batch_size() -> None:
    made = ["model=quickstart_rm", "global_rm=pooled", "scpo.batch_size=16", "scpo.per_device_train_batch_size=16"]
    counts = count(steered(*made))
    small, large = (
        estimate(steered(*made, f"global_rm.per_device_train_batch_size={size}"), ONE, counts)["activations"]
        for size in (1, 64)
    )
    assert large == 4 * small


# --- activations, against what autograd saves ---

FEW = {"vocab_size": 100, "num_attention_heads": 4}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
POLICIES = {
    "qwen2": partial(Qwen2Config, **FEW, hidden_size=128, intermediate_size=676, num_key_value_heads=1),
    "qwen3": partial(Qwen3Config, **FEW, hidden_size=128, intermediate_size=384, num_key_value_heads=2, head_dim=64),
    "llama": partial(LlamaConfig, **FEW, hidden_size=128, intermediate_size=448, num_key_value_heads=1),
}
RMS = {
    "bert": partial(BertConfig, **FEW, **NO_DROPOUT, hidden_size=256, intermediate_size=1024),
    "deberta": partial(deberta, **FEW, **NO_DROPOUT, hidden_size=256, intermediate_size=1024),
    "llama": partial(LlamaConfig, **FEW, hidden_size=256, intermediate_size=896, num_key_value_heads=1),
    "modernbert": partial(ModernBertConfig, **FEW, hidden_size=256, intermediate_size=384),
}
PACKED, COMPLETION = 128, 64  # tokens of a prompt and of each of four completions
MODES = {  # the type of the weights, whether autocast computes in bfloat16, launch, overrides
    "adapter": (torch.bfloat16, True, ONE, ["lora=rank16", "lora.r=2"]),
    "adapter under DeepSpeed": (torch.bfloat16, False, EIGHT, ["lora=rank16", "lora.r=2"]),
    "all weights": (torch.float32, True, ONE, []),
    "all weights under DeepSpeed": (torch.bfloat16, False, EIGHT, []),
    "float32": (torch.float32, False, ONE, ["model.dtype=float32"]),
}


def with_adapter(model: PreTrainedModel, config: RunConfig | ScpoConfig, dtype: torch.dtype | None) -> Any:
    """The model with the recipe's adapter, if it has one; DeepSpeed converts that too."""
    if config.lora is None:
        return model
    adapted = get_peft_model(model, LoraConfig(**config.lora.model_dump()))
    return adapted if dtype is None else adapted.to(dtype)


def saved_bytes(model: nn.Module, compute: Callable[[], object], *, autocast: bool = False) -> int:
    """What autograd saves of a computation, besides parameters."""
    states = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if (place := tensor.untyped_storage().data_ptr()) not in states:
            kept[place] = tensor
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        compute()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def packed_bytes(config: RunConfig, architecture: PreTrainedConfig, mode: str) -> int:
    """What an update of a packed group saves."""
    dtype, autocast, launch, _ = MODES[mode]
    model = AutoModelForCausalLM.from_config(architecture, dtype=dtype, attn_implementation="sdpa").train()
    if config.grpo.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    packing.prepare(model)
    prompt = torch.randint(5, 90, (PACKED,))
    packed = packing.pack([prompt] * 4, [torch.randint(5, 90, (COMPLETION,)) for _ in range(4)])
    adapted = with_adapter(model, config, None if launch == ONE else dtype)
    return saved_bytes(adapted, lambda: model.base_model(**packed.inputs), autocast=autocast)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "checkpointing"), [*((kind, False) for kind in POLICIES), ("qwen2", True)])
def test_activations_of_a_policy_are_what_autograd_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mode: str, checkpointing: bool
) -> None:
    monkeypatch.setattr(memory, "PROMPT_TOKENS", PACKED)
    _, _, launch, words = MODES[mode]
    group = ["grpo.num_generations=4", "grpo.per_device_train_batch_size=4", f"grpo.max_completion_length={COMPLETION}"]
    config = a_run(f"model.path={tmp_path}", f"grpo.gradient_checkpointing={checkpointing}", *group, *words)
    found = []
    for layers in (1, 2):
        architecture = POLICIES[kind](num_hidden_layers=layers)
        architecture.save_pretrained(tmp_path)
        activations = estimate(config, launch, count(config))["activations"]
        found.append((activations, packed_bytes(config, architecture, mode)))
    (estimated, saved), (more_estimated, more_saved) = found
    assert 0.98 < (more_estimated - estimated) / (more_saved - saved) < 1.1


@pytest.mark.parametrize("lora", [[], ["lora=rank16", "lora.r=2"]], ids=["all weights", "adapter"])
@pytest.mark.parametrize(("kind", "length"), [*((kind, 256) for kind in RMS), ("deberta", 128), ("deberta", 512)])
def test_activations_of_a_reward_model_are_what_autograd_saves(
    tmp_path: Path, kind: str, length: int, lora: list[str]
) -> None:
    kernel = "eager" if kind == "deberta" else "sdpa"
    settings = [
        "scpo.per_device_train_batch_size=1",
        f"scpo.max_length={length}",
        f"model.attn_implementation={kernel}",
    ]
    config = steered(f"model.path={tmp_path}", "model.dtype=float32", *settings, *lora)
    rows, found = torch.randint(5, 90, (2, length)), []
    for layers in (1, 2):
        architecture = RMS[kind](num_hidden_layers=layers, num_labels=1, pad_token_id=0)
        architecture.save_pretrained(tmp_path)
        model = AutoModelForSequenceClassification.from_config(architecture, attn_implementation=kernel).train()
        saved = saved_bytes(adapted := with_adapter(model, config, None), partial(adapted, input_ids=rows))
        found.append((estimate(config, ONE, count(config))["activations"], saved))
    (estimated, saved), (more_estimated, more_saved) = found
    assert 0.98 < (more_estimated - estimated) / (more_saved - saved) < 1.1


def test_update_without_checkpointing_is_estimated_as_an_h100_measured_it(tmp_path: Path) -> None:
    """`doctor_memory` of tests/gpu: 7B, an adapter, one prompt of 1,024 tokens, eight completions of 512."""
    words = [f"model.path={a_model(tmp_path)}", "lora=rank16", "grpo.beta=0", "grpo.max_completion_length=512"]
    run = a_run(*words, "grpo.gradient_checkpointing=false", "grpo.cast_lm_head_to_fp32=false")
    assert sum(estimate(run, ONE, count(run)).values()) / GB == pytest.approx(51.86, rel=0.05)
