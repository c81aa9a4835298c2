"""vLLM servers that a trainer samples from: the main process asks them for all ranks, weights go through a folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, TypeVar, cast

import safetensors.torch
import torch
from accelerate.utils import broadcast_object_list, gather_object

from think_as_locals.engines.server_pool import VLLMServers
from think_as_locals.engines.vllm_server import START, OtherWeightsError, SampledTokens, VLLMServer
from think_as_locals.training.adapters import base_parameters, lora_unsupported_reason, save_adapter
from think_as_locals.training.faults import run_with_timeout
from think_as_locals.training.rollouts import CHECK_SAMPLING, CheckedEngine, Counts, Parameters, in_prefix_order, since
from think_as_locals.types import ServerError, TrainingError

T = TypeVar("T")

_SYNC = "sync-"
_RESTARTS = 3  # times that a server may come back with other weights in one sampling, or in one sync
_GRACE_S = 10.0  # beyond rollout.timeout_s, which ends requests, for what no request can bound: a disk, a name server


@dataclass(frozen=True, slots=True)
class Sampled:
    """Completions of the prompts of all ranks, and what the prefix cache had of these."""

    completions: list[SampledTokens]
    prefix_cache: Counts


class ServedEngine(CheckedEngine):
    """vLLM servers on other GPUs or other nodes, which the main process asks for all ranks, by a shared folder."""

    _servers: VLLMServers  # the main process alone has them
    _answers: list[SampledTokens]  # to the sync check's prompts, after the last sync

    def _init_vllm(self) -> None:
        urls, self._timeout_s = self._config.rollout.urls, self._config.rollout.timeout_s
        self._named = f"the vLLM server{'s' * (len(urls) > 1)} at {', '.join(urls)}"
        self._loaded = ""
        self._in_flight: list[Future[Sampled | None]] = []
        self._on_main(self._connect)

    @property
    def limit_s(self) -> float:
        """How long anything that the server is asked for may take."""
        return self._timeout_s + _GRACE_S

    def sync_weights(self) -> None:
        """Send the policy's weights once nothing is being sampled with the last ones; see `CheckedEngine`."""
        for future in self._in_flight:
            self._on_main(partial(_wait, future))
        super().sync_weights()

    def complete(self, prompts: Sequence[list[int]], **parameters: Any) -> list[SampledTokens]:
        """Return a completion for each prompt of this rank; all ranks call it and raise TrainingError together."""
        everyones, own = self._gathered(prompts)
        for _ in range(_RESTARTS):
            if (sampled := self._on_main(lambda: self._current(everyones, parameters))) is not None:
                return sampled.completions[own]
            self.sync_weights()  # it was restarted, and has the weights it was started with
        raise TrainingError(self._restarts("sampled"))

    def sample_ahead(self, batches: Sequence[list[list[int]]]) -> list[Future[Sampled | None]]:
        """Have the server sample batches with the weights of the last sync, one after the other, in the background.

        The main process has the prompts of all ranks and gets completions by `collect`; `None` where the server has
        other weights by then. The next sync waits for all of them.
        """
        self._in_flight = [Future() for _ in batches]
        if batches and self.accelerator.is_main_process:
            Thread(target=self._sample_all, args=(batches, self._in_flight), daemon=True).start()
        return self._in_flight

    def collect(
        self, future: Future[Sampled | None], prompts: Sequence[list[int]], check: Callable[[list[list[int]]], None]
    ) -> list[SampledTokens] | None:
        """Return this rank's completions of a batch, which is waited for; `check` may refuse the prompts of all."""
        everyones, own = self._gathered(prompts)

        def take() -> Sampled | None:
            check(everyones)
            return future.result()

        if (sampled := self._on_main(take)) is None:
            return None
        self._log_hit_rate(sampled.prefix_cache if self.accelerator.is_main_process else (0.0, 0.0))
        return sampled.completions[own]

    def _sample_all(self, batches: Sequence[list[list[int]]], futures: Sequence[Future[Sampled | None]]) -> None:
        fault: Exception | None = None
        for prompts, future in zip(batches, futures, strict=True):
            try:
                if fault is None:
                    future.set_result(self._current(prompts, self._sampling))
                    continue
            except Exception as error:  # of whatever kind: `collect` raises it
                fault = error
            future.set_exception(fault)

    def _gathered(self, prompts: Sequence[list[int]]) -> tuple[list[list[int]], slice]:
        """Return the prompts of all ranks, and which of them are this rank's."""
        counts = gather_object([len(prompts)])
        first = sum(counts[: self.accelerator.process_index])
        return gather_object(list(prompts)), slice(first, first + len(prompts))

    def _current(self, prompts: list[list[int]], parameters: dict[str, Any]) -> Sampled | None:
        """Return completions by the weights of the last sync, or `None` where the server has others now."""
        with self._servers.one_limit(), suppress(OtherWeightsError):
            before = self._servers.prefix_cache()
            (found,) = in_prefix_order(
                prompts, lambda ordered: (self._servers.complete(ordered, self._loaded, **parameters),)
            )
            return Sampled(found, since(before, self._servers.prefix_cache()))
        return None

    def _connect(self) -> None:
        for left in self._weights.glob(f"{_SYNC}*"):  # by a process of this run that was killed
            shutil.rmtree(left, ignore_errors=True)
        self._servers = VLLMServers(self._config.rollout.urls, self._timeout_s)
        expected = {"dtype": self._dtype, "logprobs_mode": "processed_logprobs"}
        for server in self._servers.all:
            state = server.state()
            if wrong := {name: state[name] for name, value in expected.items() if state[name] != value}:
                raise ServerError(f"the vLLM server at {server.url} has {wrong}, expected {expected}: {START}")

    def _merge_reason(self) -> str | None:
        if reason := super()._merge_reason():
            return reason
        states = self._on_main(lambda: self._servers.on_each(VLLMServer.state))
        reasons = [lora_unsupported_reason(self.model, state["adapters"]) for state in states]
        return next((reason for reason in reasons if reason), None)

    def _send_adapter(self, tensors: dict[str, torch.Tensor]) -> None:
        for _ in range(_RESTARTS):
            states = self._on_main(lambda: self._servers.on_each(VLLMServer.state))
            if any(state["weights"] != self._loaded for state in states):
                # It was never given this run's base weights, or was restarted.
                self._send(self._counted(base_parameters(self.model, self._dist.gather_params)))
            if (answers := self._on_main(lambda: self._load_adapter(tensors))) is not None:
                self._answers = answers
                return
        raise TrainingError(self._restarts("took an adapter"))

    def _load_adapter(self, tensors: dict[str, torch.Tensor]) -> list[SampledTokens] | None:
        """Load the adapter; return the answers to the sync check, or `None` where no server has its base weights."""

        def load(server: VLLMServer) -> list[SampledTokens]:
            server.load_adapter(folder)
            return server.complete(self._check_prompts, self._loaded, **CHECK_SAMPLING)

        with self._servers.one_limit(), TemporaryDirectory(dir=self._weights, prefix=_SYNC) as folder:
            save_adapter(self.model, tensors, folder)
            with suppress(OtherWeightsError):
                return [answer for answers in self._servers.on_each(load) for answer in answers]
        return None

    def _send_weights(self) -> None:
        self._send(self._iter_named_params())

    def _send(self, parameters: Parameters) -> None:
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in parameters:  # gathers what is sharded, so every rank goes through it
            if self.accelerator.is_main_process:
                tensors[name] = parameter.detach().to("cpu", copy=True).contiguous()
        self._answers = self._on_main(lambda: self._load(tensors))

    def _load(self, tensors: dict[str, torch.Tensor]) -> list[SampledTokens]:
        """Load weights into the servers; return their answers to the sync check."""

        def load(server: VLLMServer) -> list[SampledTokens]:
            for _ in range(_RESTARTS):
                server.load_weights(folder)
                with suppress(OtherWeightsError):  # it was restarted since
                    return server.complete(self._check_prompts, folder, **CHECK_SAMPLING)
            raise ServerError(self._restarts("took new weights"))

        self._weights.mkdir(parents=True, exist_ok=True)
        # The name is unique among syncs and runs: by it a server says what it holds.
        with self._servers.one_limit(), TemporaryDirectory(dir=self._weights, prefix=_SYNC) as folder:
            safetensors.torch.save_file(tensors, Path(folder, "model.safetensors"), metadata={"format": "pt"})
            answers = self._servers.on_each(load)
            self._loaded = folder
            return [answer for each in answers for answer in each]

    def _check_completions(self) -> list[SampledTokens]:
        return self._answers

    def _sample(self, prompts: list[list[int]], num_generations: int, profiler: Any) -> Any:
        found = self.complete(prompts, **self._sampling)
        return prompts, [c.token_ids for c in found], [[[value] for value in c.log_probs] for c in found], None

    @property
    def _sampling(self) -> dict[str, Any]:
        """How rollouts are sampled, as parameters of a request."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p or 0.0,
            "repetition_penalty": self.repetition_penalty,
            "max_tokens": self.max_completion_length,
            "stop_token_ids": sorted(self._eos_token_ids),
            **self.generation_kwargs,
        }

    def _prefix_cache(self) -> Counts:
        counts = self._on_main(lambda: self._servers.prefix_cache())
        return counts if self.accelerator.is_main_process else (0.0, 0.0)  # the ranks' are added up

    def _restarts(self, action: str) -> str:
        return (
            f"{self._named} came back with other weights {_RESTARTS} times while it {action}"
            ": its log says why it stops; see that no other run gives it weights"
        )

    def _on_main(self, work: Callable[[], T]) -> T:
        """Return on all ranks what the main process gets from the server; where that fails, all raise TrainingError."""
        found, fault = None, None
        if self.accelerator.is_main_process:
            try:
                found = run_with_timeout(self.limit_s, work)
            except (ServerError, TrainingError) as error:
                fault = f"{error}"
            except Exception as error:  # of whatever kind: the other ranks wait
                fault = (
                    f"{type(error).__name__}: {error}: while {self._named} was asked to sample or "
                    f"to load weights from {self._weights}, in {self._timeout_s:g} s (rollout.timeout_s)"
                )
        found, fault = broadcast_object_list([found, fault])
        if fault is not None:
            raise TrainingError(fault)
        return cast("T", found)


def _wait(future: Future[Any]) -> None:
    """Return when it is done, whatever came of it."""
    wait([future])
