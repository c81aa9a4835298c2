"""What a weight sync's check by tensors takes, and how it refuses the rest; real engines: test_rollouts.py."""

from __future__ import annotations

import pytest
import torch

from think_as_locals.training.sync_check import SentTensors
from think_as_locals.types import TrainingError


def sent(value: float = 1.0) -> SentTensors:
    tensors = SentTensors("bfloat16", sync=1)
    tensors.add("norm.weight", torch.full((4,), value))
    tensors.add("q.weight", torch.ones(4, 4))
    tensors.add("mlp.experts.w", torch.ones(4))
    return tensors


def test_tensors_are_compared_in_the_engines_type_and_experts_are_left_out() -> None:
    assert sent().request["shapes"] == {"norm.weight": [4], "q.weight": [4, 4]}
    assert sent(1 + 1e-6).check([sent().expected], "vLLM") == []  # rounded away
    with pytest.raises(TrainingError, match=r"1 of 2 tensors of the weights in vLLM differ from .*\(norm.weight\)"):
        sent(1.01).check([sent().expected], "vLLM")


def test_some_tensors_may_be_unreadable_but_not_all_and_a_worker_must_answer_for_each() -> None:
    unread = {"norm.weight": (0, 0)}
    assert sent().check([sent().expected | unread], "vLLM") == ["norm.weight"]
    with pytest.raises(TrainingError, match="2 of 2 tensors of the weights in vLLM cannot be compared"):
        sent().check([dict.fromkeys(sent().expected, (0, 0))], "vLLM")
    with pytest.raises(TrainingError, match="2 of 2 tensors of the weights in vLLM differ"):
        sent().check([{}], "vLLM")


def test_a_sync_that_sends_nothing_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"0 of 0 tensors of the adapter in vLLM .*none was sent"):
        SentTensors("bfloat16", 1, adapter=True).check([{}], "vLLM")
