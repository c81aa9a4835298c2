"""Weight digests: they describe the weights that an engine holds in any layout, and reading changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from think_as_locals.engines.weight_digests import Digest, DigestRequest, SentTensors, differing, digest, read
from think_as_locals.types import TrainingError

ROWS, WIDTH, VOCABULARY = 96, 32, 100  # no tensor is larger than the sample
SHAPES = {
    "embed.weight": (VOCABULARY, WIDTH),
    "q.weight": (ROWS, WIDTH),
    "k.weight": (ROWS // 2, WIDTH),
    "conv.weight": (WIDTH, 3 * WIDTH),
    "norm.weight": (WIDTH,),
}


class Engine(nn.Module):
    """One of several workers, with a layout as vLLM's: fused, padded, transposed, in shards; k is on all of them."""

    def __init__(self, worker: int = 0, workers: int = 1, *, packs: bool = False) -> None:
        super().__init__()
        self.worker, self.workers, self.packs = worker, workers, packs
        self.qk = nn.Parameter(torch.zeros(ROWS // workers + ROWS // 2, WIDTH, dtype=torch.bfloat16))
        self.embedding = nn.Parameter(torch.zeros(128, WIDTH, dtype=torch.bfloat16))
        self.head = self.embedding
        self.conv = nn.Parameter(torch.zeros(3 * WIDTH, WIDTH, dtype=torch.bfloat16))
        self.norm = nn.Parameter(torch.zeros(WIDTH))  # float32: values in bfloat16 are the same there

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        for name, weight in weights:
            size = weight.shape[0] // self.workers
            own = weight.narrow(0, self.worker * size, size)
            if name == "q.weight":
                self.qk.data.narrow(0, 0, size).copy_(own)
            elif name == "k.weight":
                self.qk.data[-len(weight) :].copy_(weight)
            elif name == "conv.weight":
                if self.packs:
                    raise AssertionError("a packed layer has no place for it")
                self.conv.data.copy_(weight.t())
            elif name == "embed.weight":
                self.embedding[: len(weight)].data.copy_(weight)
                self.embedding[len(weight) :].data.fill_(0)
                self.head[: len(weight)].data.copy_(weight)
            else:
                self.norm.data.copy_(weight)


def tensors(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in SHAPES.items()}


def ask(engines: list[Any], sync: int = 1, quantization: str | None = None) -> list[dict[str, Digest]]:
    request: DigestRequest = {
        "shapes": {name: list(shape) for name, shape in SHAPES.items()},
        "dtype": "bfloat16",
        "sync": sync,
        "adapter": False,
    }
    config = SimpleNamespace(quantization=quantization)
    runners = [SimpleNamespace(get_model=partial(nn.Module.eval, each), model_config=config) for each in engines]
    return [read(runner, request) for runner in runners]


def expected(weights: dict[str, Tensor], sync: int = 1) -> dict[str, Digest]:
    return {name: digest(weight, sync) for name, weight in weights.items()}


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_digests_match_loaded_weights_in_any_layout_without_changes(workers: int) -> None:
    engines, weights = [Engine(worker, workers) for worker in range(workers)], tensors()
    for engine in engines:
        engine.load_weights(weights.items())
        engine.embedding.data[VOCABULARY:] = 7  # of the padding, which the loader would set to 0
    before = [{name: value.clone() for name, value in engine.named_parameters()} for engine in engines]
    for sync in (1, 2):
        assert differing(expected(weights, sync), ask(engines, sync)) == ([], [])
    for engine, state in zip(engines, before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in engine.named_parameters())


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("workers", [1, 2])
def test_single_bit_difference_on_one_worker_is_detected(name: str, workers: int) -> None:
    engines, weights = [Engine(worker, workers) for worker in range(workers)], tensors()
    for engine in engines:
        engine.load_weights(weights.items())
    weights[name].view(torch.int16).view(-1)[-1] ^= 1
    engines[-1].load_weights(weights.items())
    assert differing(expected(tensors()), ask(engines)) == ([name], [])


def test_digest_depends_on_position_sign_and_dtype() -> None:
    weight = tensors()["q.weight"]
    for other in (weight.roll(1, 0), weight.roll(1, 1), weight.flip(0), -weight):
        assert digest(other, 1) != digest(weight, 1)
    assert digest(weight.float(), 1) != digest(weight, 1)


def test_large_tensor_digest_samples_every_part_and_varies_by_sync() -> None:
    weight = torch.zeros(512, 512)
    found = []
    for sync in range(40):
        before, changed = digest(weight, sync), weight.clone()
        changed[32 * (sync % 16) : 32 * (sync % 16) + 32] += 1  # 1/16 of the rows
        found.append(digest(changed, sync) != before)
        changed = weight.clone()
        changed[:, 8 * sync : 8 * sync + 8] += 1
        found.append(digest(changed, sync) != before)
    assert all(found)
    one = weight.clone()
    one[3, 5] = 1
    missed = [digest(one, sync) == digest(weight, sync) for sync in range(400)]
    assert 0 < sum(missed) < 400


def test_digest_detects_bfloat16_updates_at_rl_learning_rates() -> None:
    generator = torch.Generator().manual_seed(0)
    missed = 0
    for _ in range(20):
        weight = torch.randn(256, 256, generator=generator) * 0.02
        moved = weight + 1e-6 * torch.randn(256, 256, generator=generator).sign()
        before, after = weight.bfloat16(), moved.bfloat16()
        assert (before != after).float().mean() < 0.05  # most elements stay as they are
        missed += digest(after, 1) == digest(before, 1)
    assert missed == 0


def test_unreadable_tensors_are_reported_and_the_others_compared() -> None:
    engine, weights = Engine(packs=True), tensors()
    engine.load_weights((name, weight) for name, weight in weights.items() if name != "conv.weight")
    assert differing(expected(weights), ask([engine])) == ([], ["conv.weight"])
    engine.norm.data[3] += 1
    assert differing(expected(weights), ask([engine])) == (["norm.weight"], ["conv.weight"])


def test_quantised_engine_compares_only_unquantised_tensors() -> None:
    model = nn.ModuleDict({"norm": nn.LayerNorm(WIDTH, bias=False), "q": nn.Linear(WIDTH, ROWS, bias=False)})
    model["q"].weight = nn.Parameter(torch.zeros(ROWS, WIDTH, dtype=torch.int8), requires_grad=False)
    weights = tensors()
    model["norm"].weight.data.copy_(weights["norm.weight"])
    different, unreadable = differing(expected(weights), ask([model], quantization="int8"))
    assert different == []
    assert sorted(unreadable) == sorted(set(SHAPES) - {"norm.weight"})
    model["norm"].weight.data[0] += 1
    assert differing(expected(weights), ask([model], quantization="int8"))[0] == ["norm.weight"]


# --- what was sent, and what an engine answers ---


def sent(value: float = 1.0) -> SentTensors:
    tensors = SentTensors("bfloat16", sync=1)
    tensors.add("norm.weight", torch.full((4,), value))
    tensors.add("q.weight", torch.ones(4, 4))
    tensors.add("mlp.experts.w", torch.ones(4))
    return tensors


def test_check_compares_in_engine_dtype_and_skips_experts() -> None:
    assert sent().request["shapes"] == {"norm.weight": [4], "q.weight": [4, 4]}
    assert sent(1 + 1e-6).check([sent().expected], "vLLM") == []  # rounded away
    with pytest.raises(TrainingError, match=r"1 of 2 tensors of the weights in vLLM differ from .*\(norm.weight\)"):
        sent(1.01).check([sent().expected], "vLLM")


def test_check_rejects_all_unreadable_or_missing_digests() -> None:
    unread = {"norm.weight": (0, 0)}
    assert sent().check([sent().expected | unread], "vLLM") == ["norm.weight"]
    with pytest.raises(TrainingError, match="2 of 2 tensors of the weights in vLLM cannot be compared"):
        sent().check([dict.fromkeys(sent().expected, (0, 0))], "vLLM")
    with pytest.raises(TrainingError, match="2 of 2 tensors of the weights in vLLM differ"):
        sent().check([{}], "vLLM")


def test_weight_sync_without_tensors_is_rejected() -> None:
    with pytest.raises(TrainingError, match=r"0 of 0 tensors of the adapter in vLLM .*none was sent"):
        SentTensors("bfloat16", 1, adapter=True).check([{}], "vLLM")
