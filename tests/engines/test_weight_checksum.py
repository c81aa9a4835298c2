"""The checksum of one tensor: it is of one that training changed, and finds an update by 1e-6 that did not arrive."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from think_as_locals.engines.vllm_engine import SentTensors, check_sync, checksum, read_checksum
from think_as_locals.types import TrainingError

NAMES = [f"layers.{number}.{matrix}.weight" for number in range(2) for matrix in ("q_proj", "o_proj")]


def weights(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: (0.02 * torch.randn(64, 64, generator=generator)).to(dtype) for name in NAMES}


def engine(tensors: dict[str, Tensor], *, rows: slice = slice(None)) -> SimpleNamespace:
    """A worker with a part of each tensor."""
    model = nn.Module()
    model.named_parameters = lambda: ((name, tensor[:, rows]) for name, tensor in tensors.items())  # type: ignore[assignment,misc,return-value]
    return SimpleNamespace(get_model=lambda: model)


def sync(sent: SentTensors, tensors: dict[str, Tensor]) -> str:
    """The name of the tensor that is to be read back."""
    sent.begin()
    for name, tensor in tensors.items():
        sent.add(name, tensor)
    assert sent.request is not None
    return sent.request["name"]


def test_tensor_is_one_that_training_changed() -> None:
    sent, tensors = SentTensors("bfloat16"), weights()
    assert sync(sent, tensors) == NAMES[1]
    tensors[NAMES[3]] = tensors[NAMES[3]] + 0.01
    assert sync(sent, tensors) == NAMES[3]
    assert sent.expected == checksum(tensors[NAMES[3]])
    assert sync(sent, tensors) == NAMES[1]  # nothing has changed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_update_by_1e_6_that_did_not_arrive_is_found(dtype: torch.dtype, workers: int) -> None:
    sent, stale = SentTensors(str(dtype).removeprefix("torch.")), weights(dtype)
    sync(sent, stale)
    updated = {name: (tensor.float() + 1e-6).to(dtype) for name, tensor in stale.items()}
    name = sync(sent, updated)
    parts = [slice(first, first + 64 // workers) for first in range(0, 64, 64 // workers)]
    assert sent.request is not None
    found = {
        arrived: [read_checksum(engine(updated if arrived else stale, rows=part), sent.request) for part in parts]
        for arrived in (True, False)
    }
    assert check_sync(name, sent.expected, found[True], "here")
    with pytest.raises(TrainingError, match=name):
        check_sync(name, sent.expected, found[False], "here")


def test_whole_tensor_is_accepted_and_a_missing_one_unread() -> None:
    assert check_sync("o_proj", 7, [7, 7], "here")
    request = {"name": NAMES[1], "dtype": "bfloat16"}
    assert read_checksum(engine({}), request) is None  # type: ignore[arg-type]
    assert read_checksum(engine(weights(torch.float32)), request) is None  # type: ignore[arg-type]
    assert not check_sync(NAMES[1], 7, [None, None], "here")
