"""An engine without vLLM: a second model in this process, which gets the policy's weights as vLLM does."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from think_as_locals.engines.vllm_engine import ChecksumRequest, read_checksum
from think_as_locals.engines.vllm_server import SampledTokens
from think_as_locals.training.rollouts import ColocatedGeneration


class LocalEngine(ColocatedGeneration):
    """Serves with the last weights that it was sent; `withheld` names tensors that do not arrive."""

    withheld = ""

    def _init_vllm(self) -> None:
        dtype = getattr(torch, self._dtype)
        self.llm: Any = AutoModelForCausalLM.from_pretrained(self.model.name_or_path, dtype=dtype).eval()

    def _send_weights(self) -> None:
        received = list(self._iter_named_params())
        self._load(each for each in received if not self.withheld or self.withheld not in each[0])
        self._read_back(self._tensors)

    @torch.no_grad()
    def _load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        own = dict(self.llm.named_parameters())
        for name, value in weights:
            own[name].copy_(value)

    def _read(self, request: ChecksumRequest) -> int | None:
        return read_checksum(SimpleNamespace(get_model=lambda: self.llm), request)

    def _complete(self, prompt: list[int], count: int, *, greedy: bool) -> SampledTokens:
        ids, log_probs, likeliest = [*prompt], [], []
        for _ in range(count):
            with torch.no_grad():
                places = self.llm(input_ids=torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
            best = places.topk(20)
            ids.append(int(best.indices[0] if greedy else places.exp().multinomial(1)))
            log_probs.append(float(places[ids[-1]]))
            likeliest.append(dict(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
        return SampledTokens(ids[len(prompt) :], log_probs, likeliest)

    def _check_completions(self) -> list[SampledTokens]:
        return [self._complete(prompt, 8, greedy=True) for prompt in self._check_prompts]

    def _sample(self, prompts: list[list[int]], num_generations: int, profiler: Any) -> Any:
        found = [self._complete(prompt, 4, greedy=False) for prompt in prompts]
        return prompts, [one.token_ids for one in found], [[[value] for value in one.log_probs] for one in found], None

    def _prefix_cache(self) -> tuple[float, float]:
        return 0.0, 0.0
