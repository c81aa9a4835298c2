"""A fake vLLM server with the routes that training uses: a small model samples with fixed random numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from loopback import HANGS_UP, Answer, Received, answering
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from think_as_locals.engines.transformers_engine import padded
from think_as_locals.engines.vllm_engine import ChecksumRequest, checksum
from think_as_locals.training.adapters import applied_tensors


class ScriptedVLLM:
    """Rollout k of a prompt depends on the weights, the prompt and k alone, so that runs can be compared.

    `before` is called with each request and may hang up (True), as a server does that is killed.
    """

    url = ""

    def __init__(self, model: Path) -> None:
        self._start = str(model)
        # Copied later: two threads cannot load models at once.
        self._first: Any = AutoModelForCausalLM.from_pretrained(model).eval()
        self.before: Callable[[Received], bool] = lambda request: False
        self.connected = False  # to a group of vLLM's transfer by NCCL
        self.served: list[tuple[str, int]] = []  # name of the weights and number of prompts of each request
        self.restart()

    def restart(self) -> None:
        """Have the weights of the start again."""
        self.weights = self._start
        self._model = deepcopy(self._first)
        self._adapters: dict[str, Any] = {}
        self._updating = False

    def respond(self, request: Received) -> Answer:
        if self.before(request):
            return HANGS_UP, None, {}
        return 200, self._answer(request.path, request.body), {}

    def _answer(self, route: str, body: Any) -> Any:
        if route == "/v1/completions":
            return {"choices": self._complete(**body)}
        if route == "/v1/load_lora_adapter":
            adapted = PeftModel.from_pretrained(deepcopy(self._model), body["lora_path"]).eval()
            self._adapters = {body["lora_name"]: adapted}
            return "loaded"
        if route == "/metrics":
            return f"vllm:prefix_cache_hits_total 0\nvllm:prefix_cache_queries_total {len(self.served)}"
        if route.endswith("_weight_update"):
            assert self._updating == (route == "/finish_weight_update")
            self._updating = not self._updating
            return {}
        if route == "/update_weights":
            assert self._updating
            self.weights = body["update_info"]["weights"]
            self._model.load_state_dict(load_file(body["update_info"]["file"]), strict=False)
            return {}
        if route == "/collective_rpc" and body["method"] == "tal_read":
            return {"success": True, "results": [{"checksum": self._read(body["kwargs"]["request"])}]}
        limits = {"rank": 16, "modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}
        known = {
            "dtype": "float32",
            "head_dtype": "float32",
            "logprobs_mode": "processed_logprobs",
            "adapters": limits,
            "connected": self.connected,
        }
        now = {"weights": self.weights, "updating": self._updating, "gpu": False}
        return {"success": True, "results": [{**known, **now}]}

    def _read(self, request: ChecksumRequest) -> int:
        dtype = getattr(torch, request["dtype"])
        tensors = self._model.state_dict()
        if ".lora_B." in request["name"]:
            (adapted,) = self._adapters.values()
            tensors = applied_tensors(adapted, get_peft_model_state_dict(adapted), dtype)
        return checksum(tensors[request["name"]].to(dtype))

    @torch.no_grad()
    def _complete(
        self, prompt: list[list[int]], max_tokens: int, temperature: float, logprobs: int, **rest: Any
    ) -> list[dict[str, Any]]:
        model = self._adapters[rest["model"]] if "model" in rest else self._model
        if "ignore_eos" not in rest:
            self.served.append((rest.get("model", self.weights), len(prompt)))
        ends = () if rest.get("ignore_eos") else rest["stop_token_ids"]
        ids, mask = padded(prompt, "left")
        shape = (max_tokens, model.config.vocab_size)
        gumbel = torch.stack([_gumbel(row, prompt[:k].count(row), shape) for k, row in enumerate(prompt)])
        found: list[list[tuple[int, dict[str, float]]]] = [[] for _ in prompt]
        for step in range(max_tokens):
            logits = model(input_ids=ids, attention_mask=mask).logits[:, -1].float()
            scores = (logits / (temperature or 1.0)).log_softmax(-1)
            chosen = (scores + gumbel[:, step] * (temperature > 0)).argmax(-1)
            for row, token in enumerate(chosen.tolist()):
                if not (found[row] and found[row][-1][0] in ends):
                    best = {token: float(scores[row, token])}
                    if logprobs:
                        top = scores[row].topk(logprobs)
                        best |= dict(zip(top.indices.tolist(), top.values.tolist(), strict=True))
                    found[row].append((token, {f"token_id:{t}": value for t, value in best.items()}))
            ids = torch.cat([ids, chosen[:, None]], 1)
            mask = torch.cat([mask, mask.new_ones(len(prompt), 1)], 1)
        return [_choice(index, tokens) for index, tokens in enumerate(found)]


def samples(request: Received) -> bool:
    """Whether a request is for rollouts, and not the check after a sync."""
    return request.path == "/v1/completions" and "ignore_eos" not in request.body


def _gumbel(prompt: list[int], times: int, shape: tuple[int, int]) -> torch.Tensor:
    """Random numbers of a rollout, (tokens, vocabulary)."""
    seed = int.from_bytes(hashlib.sha256(repr((prompt, times)).encode()).digest()[:6], "big")
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return -(-uniform.clamp(1e-20).log()).log()


def _choice(index: int, tokens: list[tuple[int, dict[str, float]]]) -> dict[str, Any]:
    likeliest = [best for _, best in tokens]
    values = [best[f"token_id:{token}"] for token, best in tokens]
    logprobs = {"token_logprobs": values, "top_logprobs": likeliest}
    return {"index": index, "token_ids": [token for token, _ in tokens], "logprobs": logprobs}


@contextmanager
def serving(model: Path) -> Iterator[ScriptedVLLM]:
    """A server that is up meanwhile."""
    scripted = ScriptedVLLM(model)
    with answering(scripted.respond) as scripted.url:
        yield scripted
