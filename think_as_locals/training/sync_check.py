"""The check of a weight sync by tensors: those that an engine holds are those that it was sent, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from think_as_locals.engines.weight_digests import Digest, Request, differing, digest
from think_as_locals.types import TrainingError

Workers = Sequence[Mapping[str, Digest]]
"""What each worker of an engine answers to a request."""


class SentTensors:
    """The tensors of a weight sync: what an engine is asked for about them, and what it has to answer.

    Experts of a mixture are left out: kernels have them in layouts of their own.
    """

    def __init__(self, dtype: str, sync: int, *, adapter: bool = False) -> None:
        self.request: Request = {"shapes": {}, "dtype": dtype, "sync": sync, "adapter": adapter}
        self.expected: dict[str, Digest] = {}
        self._dtype = getattr(torch, dtype)

    def add(self, name: str, tensor: Tensor) -> None:
        """Note a tensor that is sent."""
        if tensor.numel() and ".experts." not in name:
            self.request["shapes"][name] = list(tensor.shape)
            self.expected[name] = digest(tensor.to(self._dtype), self.request["sync"])

    def check(self, workers: Workers, where: str) -> list[str]:
        """Return the tensors that cannot be read back; a TrainingError unless the others are as they were sent.

        An engine of which none can be read is refused as well: its loader takes nothing.
        """
        different, unread = differing(self.expected, workers)
        if different or len(unread) == len(self.expected):
            named = ", ".join((different or unread)[:3]) or "none was sent"
            kind, how = "adapter" if self.request["adapter"] else "weights", "differ from"
            if unread and not different:
                how = "cannot be compared with"
            raise TrainingError(
                f"after a weight sync {len(different or unread)} of {len(self.expected)} tensors of the {kind} in "
                f"{where} {how} the policy's ({named}), expected the same {self.request['dtype']} bits in all: "
                "the sync did not arrive, in part or as a whole. Nothing was sampled with them"
            )
        return unread
