"""Packed rows hold a shared prompt once, and say where each token is."""

from __future__ import annotations

import pytest
import torch

from think_as_locals.engines import packing


def test_pack_stores_a_shared_prompt_once_and_wants_texts() -> None:
    prompt = torch.arange(10)
    packed = packing.pack([prompt] * 3, [torch.tensor([1, 2]), torch.tensor([], dtype=torch.long), torch.tensor([3])])
    assert packed.tokens.shape == (1, 9 + 2 + 1)
    assert packed.tokens[0, 9:].tolist() == [9, 1, 9]
    assert packed.positions[0, 9:].tolist() == [9, 10, 9]
    assert packed.rows.tolist() == [0, 0, 2]
    assert packed.columns.tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="nothing to pack"):
        packing.pack([torch.tensor([1])], [torch.tensor([], dtype=torch.long)])
    with pytest.raises(ValueError, match="a prompt before each"):
        packing.pack([torch.tensor([], dtype=torch.long)], [torch.tensor([1])])


def test_pack_rows_stores_a_shared_prefix_once() -> None:
    packed = packing.pack_rows([[[1, 2, 3, 4], [1, 2, 5], [1, 2]], [[7]]], torch.device("cpu"))
    assert packed.tokens.tolist() == [[1, 2, 3, 4, 2, 5, 2, 7]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 1, 2, 1, 0]]
    assert packed.scored.tolist() == [3, 5, 6, 7]
