"""LM heads of TRL's trainers: the numbers of its own tiles, from logits that are computed once."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from trl.kernels import ChunkedLogProbFunction
from trl.trainer import utils

from think_as_locals.training import lm_heads
from think_as_locals.training.lm_heads import lean_heads

VOCABULARY = 301
MODEL: Any = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=VOCABULARY)))
OUTPUTS = ("log_probs", "entropy", "is_top1")


def results(
    tokens: int = 40,
    *,
    dtype: torch.dtype = torch.float32,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    scale: float = 1.0,
    outputs: tuple[str, ...] = OUTPUTS,
    bonus: float = 0.0,
) -> list[Tensor]:
    """Outputs of the head that TRL's trainers call, and gradients of a loss with this entropy bonus."""
    torch.manual_seed(0)
    hidden, weight = (torch.randn(size, 16).to(dtype).requires_grad_() for size in (tokens, VOCABULARY))
    advantages = torch.arange(1, tokens + 1) % 3 / tokens
    head = utils._ChunkedLogProbFunction.apply(
        *(hidden, weight, bias, torch.randint(VOCABULARY, (tokens,)), temperature),
        *(utils._CHUNKED_LOGPROB_CHUNK_SIZE, softcap, scale, outputs),
    )
    loss = (head[0] * advantages).sum()
    if bonus:
        loss = loss - bonus * (head[1] * advantages).sum()
    return [each.detach() for each in head if each is not None] + [*torch.autograd.grad(loss, (hidden, weight))]


def calls_of_trls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The widths of the tiles of each call of TRL's own head."""
    calls, forward = list[int](), ChunkedLogProbFunction.forward
    parameters = [*inspect.signature(forward).parameters][1:]
    assert parameters == [
        *("hidden", "weight", "bias", "targets", "temperature"),
        *("chunk_size", "final_logit_softcapping", "logit_scale", "outputs"),
    ], "this TRL's heads take other arguments: training/lm_heads.py must be adapted"

    def counted(*arguments: Any) -> Any:
        calls.append(arguments[6])
        return forward(*arguments)

    monkeypatch.setattr(ChunkedLogProbFunction, "forward", staticmethod(counted))
    return calls


@pytest.mark.parametrize("tokens", [1, 40, 9_000])  # 9,000 are three of TRL's tiles
@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.7}, {"bonus": 0.1}, {"outputs": ("log_probs", "entropy")}, {"outputs": ("log_probs",)}],
)
def test_kept_logits_give_trls_numbers(monkeypatch: pytest.MonkeyPatch, tokens: int, settings: dict[str, Any]) -> None:
    expected = results(tokens, **settings)
    calls = calls_of_trls(monkeypatch)
    with lean_heads(MODEL):
        found = results(tokens, **settings)
    assert not calls
    assert found[-1].any()
    # Equal bit by bit; of several tiles, a BLAS may multiply the last row of one in another way.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 if tokens == 9_000 else 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"bias": torch.ones(VOCABULARY)},
        {"softcap": 5.0},
        {"scale": 0.5},
        {"outputs": (*OUTPUTS, "mean_logits")},
        {"dtype": torch.float64},
        {"dtype": torch.bfloat16},
        {"autocast": torch.bfloat16},
        {"tile": 40 * VOCABULARY - 1},  # the logits would be more
    ],
)
def test_other_heads_are_left_to_trl(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    settings = dict(settings)
    dtype = settings.pop("autocast", None)
    monkeypatch.setattr(lm_heads, "_TILE", settings.pop("tile", lm_heads._TILE))
    with torch.autocast("cpu", dtype) if dtype else nullcontext():
        expected = results(**settings)
        calls = calls_of_trls(monkeypatch)
        with lean_heads(MODEL):
            found = results(**settings)
    assert calls == [VOCABULARY]
    assert all(map(torch.equal, found, expected))
