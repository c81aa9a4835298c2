"""A vLLM server that a trainer samples from: the main process sends the requests of all ranks.

Weights are sent by NCCL, from GPU to GPU, or through a shared folder (`rollout.transfer`).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast
from uuid import uuid4

import torch
from accelerate.utils import broadcast_object_list, gather_object

from think_as_locals.engines.vllm_engine import AdapterLimits, SentTensors
from think_as_locals.engines.vllm_server import START_COMMAND, OtherWeightsError, SampledTokens, VLLMServer
from think_as_locals.runtime.processes import in_background, run_with_timeout
from think_as_locals.training.adapters import base_parameters, lora_unsupported_reason, save_adapter
from think_as_locals.training.rollouts import (
    CHECK_SAMPLING,
    CheckedGeneration,
    Lookups,
    Parameters,
    in_prefix_order,
    since,
)
from think_as_locals.training.weight_transfer import NCCLTransfer, WeightFiles, nccl_unsupported_reason
from think_as_locals.types import ServerError, ThinkAsLocalsError, TrainingError

_logger = logging.getLogger(__name__)

T = TypeVar("T")

_SYNC = "sync-"
_RESTARTS = 3  # times that a server may come back with other weights in one sampling, or in one sync
_GRACE_S = 10.0  # beyond rollout.timeout_s, which bounds requests, for slow disks and name servers


@dataclass(frozen=True, slots=True)
class Sampled:
    """Completions of the prompts of all ranks, and the counts of the prefix cache."""

    completions: list[SampledTokens]
    prefix_cache: Lookups


class ServedGeneration(CheckedGeneration):
    """A vLLM server on other GPUs or other nodes."""

    _server: VLLMServer  # the main process alone has it
    _answers: list[SampledTokens]  # to the sync check's prompts, after the last sync
    _fault: OtherWeightsError  # the last, on the main process

    def _init_vllm(self) -> None:
        self._timeout_s = self._config.rollout.timeout_s
        self._named = f"the vLLM server at {self._config.rollout.url}"
        self._loaded = ""
        self._in_flight: list[Future[Sampled | None]] = []
        self._lookups: Lookups = (0.0, 0.0)  # in the prefix cache; counted by the main process
        self.on_main(self._connect)
        server = self._server if self.accelerator.is_main_process else None
        self._nccl = NCCLTransfer(self._iter_named_params, server, self.accelerator.process_index)

    @property
    def limit_s(self) -> float:
        """How long any request to a server may take."""
        return self._timeout_s + _GRACE_S

    def sync_weights(self) -> None:
        """Send the policy's weights once all sampling with the last ones has ended; see `CheckedGeneration`."""
        self.on_main(lambda: wait(self._in_flight) and None)  # all ranks get what this returns
        super().sync_weights()

    def complete(self, prompts: Sequence[list[int]], **parameters: Any) -> list[SampledTokens]:
        """Return a completion for each prompt; all ranks ask for the same ones, and raise TrainingError together."""
        for _ in range(_RESTARTS):
            if (sampled := self.on_main(lambda: self._current(prompts, parameters))) is not None:
                return sampled.completions
            self.sync_weights()  # it was restarted, and has the weights it was started with
        raise TrainingError(self.on_main(lambda: self._restart_message("sampled", self._fault)))

    def sample_ahead(self, batches: Sequence[list[list[int]]]) -> list[Future[Sampled | None]]:
        """Have the server sample batches in the background, one after the other, with the weights of the last sync.

        The main process passes the prompts of all ranks; `collect` returns the completions, or `None` if the server was
        given other weights meanwhile. The next sync waits for all batches.
        """
        self._in_flight = [Future() for _ in batches]
        if batches and self.accelerator.is_main_process:
            in_background(partial(self._sample_all, batches, self._in_flight))
        return self._in_flight

    def collect(self, future: Future[Sampled | None], own: slice) -> list[SampledTokens] | None:
        """Wait for a batch and return the completions of this rank's slice of it."""
        if (sampled := self.on_main(future.result)) is None:
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
            except Exception as error:  # any exception: `collect` raises it
                fault = error
            future.set_exception(fault)

    def gathered(self, prompts: Sequence[list[int]]) -> tuple[list[list[int]], slice]:
        """Return the prompts of all ranks, and the slice of this rank."""
        ranks: list[list[list[int]]] = gather_object([list(prompts)])
        first = sum(map(len, ranks[: self.accelerator.process_index]))
        return [*chain.from_iterable(ranks)], slice(first, first + len(prompts))

    def _current(self, prompts: Sequence[list[int]], parameters: dict[str, Any]) -> Sampled | None:
        """Return completions by the weights of the last sync, or `None` if the server has others now."""
        try:
            with self._server.one_limit():
                before = self._server.prefix_cache()
                (found,) = in_prefix_order(
                    prompts, lambda ordered: (self._server.complete(ordered, self._loaded, **parameters),)
                )
                lookups = since(before, self._server.prefix_cache())
            self._lookups = self._lookups[0] + lookups[0], self._lookups[1] + lookups[1]
            return Sampled(found, lookups)
        except OtherWeightsError as error:
            self._fault = error
            _logger.warning("%s: what it was to sample is sampled again, after a weight sync", error)
            return None

    def _connect(self) -> None:
        for left in self._weights.glob(f"{_SYNC}*"):  # by a process of this run that was killed
            shutil.rmtree(left, ignore_errors=True)
        self._server = VLLMServer(self._config.rollout.url, self._timeout_s)
        state = self._server.state()
        head = "float32" if self._config.grpo.cast_lm_head_to_fp32 else self._dtype
        expected = {"dtype": self._dtype, "head_dtype": head, "logprobs_mode": "processed_logprobs"}
        if wrong := {name: state[name] for name, value in expected.items() if state[name] != value}:
            raise ServerError(f"{self._named} has {wrong}, expected {expected}: {START_COMMAND}")

    def _merge_reason(self) -> str | None:
        if reason := super()._merge_reason():
            return reason
        limits: AdapterLimits = self.on_main(lambda: self._server.state()["adapters"])
        return lora_unsupported_reason(self.model, limits)

    def _send_adapter(self, tensors: dict[str, torch.Tensor]) -> None:
        for _ in range(_RESTARTS):
            # Never given this run's base weights, or restarted.
            if self.on_main(lambda: bool(self._server.state()["weights"] != self._loaded)):
                self._send(self._new_name(), self._counted(base_parameters(self.model, self._dist.gather_params)))
            if (answers := self.on_main(lambda: self._load_adapter(tensors))) is not None:
                self._answers = answers
                return
        raise TrainingError(self.on_main(lambda: self._restart_message("took an adapter", self._fault)))

    def _load_adapter(self, tensors: dict[str, torch.Tensor]) -> list[SampledTokens] | None:
        """Load the adapter; return the answers to the sync check, or `None` if the server has not its base weights."""
        self._weights.mkdir(parents=True, exist_ok=True)
        with self._server.one_limit(), TemporaryDirectory(dir=self._weights, prefix=_SYNC) as folder:
            save_adapter(self.model, tensors, folder)
            try:
                self._server.load_adapter(folder)
                return self._query_check(self._loaded, self._adapter)
            except OtherWeightsError as error:
                self._fault = error
                return None

    def _send_weights(self) -> None:
        by_nccl, connect = self.on_main(self._choose_transfer)
        if by_nccl:
            self._broadcast(self._new_name(), connect=connect)
        else:
            self._send(self._new_name(), self._iter_named_params())

    def _new_name(self) -> str:
        """Return a name for the next weights, unique among syncs and runs; the server reports it as what it holds."""
        return self.on_main(lambda: str(self._weights / f"{_SYNC}{uuid4().hex}"))

    def _choose_transfer(self) -> tuple[bool, bool]:
        """Return whether to send weights by NCCL, and whether the server must be connected first."""
        state, wanted = self._server.state(), self._config.rollout.transfer
        reason = nccl_unsupported_reason(state)
        if reason and wanted == "nccl":
            raise ServerError(f"rollout.transfer: got nccl, but {reason}: fix that, or set folder")
        if reason and wanted is None and torch.cuda.is_available():
            _logger.warning("this weight sync goes through %s, and not by NCCL: %s", self._weights, reason)
        return reason is None and wanted != "folder", not (state["connected"] and self._nccl.connected)

    def _send(self, name: str, parameters: Parameters) -> None:
        """Write weights into files, which are loaded while others are gathered; every rank iterates over them."""
        if not self.accelerator.is_main_process:
            for _ in parameters:
                pass
            self._answers = self.on_main(list)
            return
        files = WeightFiles(Path(name), self.limit_s)
        loading = in_background(partial(self._load, files))
        try:
            for each, parameter in parameters:
                files.add(each, parameter)
        finally:
            files.close()
            try:
                self._answers = self.on_main(loading.result)
                self._loaded = name
            finally:
                shutil.rmtree(name, ignore_errors=True)

    def _load(self, files: WeightFiles) -> list[SampledTokens]:
        """Load weights from files into the server; return its answers to the sync check."""
        name = str(files.folder)
        with self._server.one_limit():
            for _ in range(_RESTARTS):
                try:
                    self._server.load_weights(files, name)
                    return self._query_check(name, self._tensors)
                except OtherWeightsError as error:  # it was restarted since
                    fault = error
        raise ServerError(self._restart_message("took new weights", fault))

    def _broadcast(self, name: str, *, connect: bool) -> None:
        """Send the policy's weights by NCCL, on all ranks together."""
        fault = None
        try:
            run_with_timeout(self.limit_s, self._nccl.send, name, connect=connect)
        except Exception as error:  # any exception: the other ranks wait
            fault = f"{type(error).__name__}: {error}"
        if faults := [each for each in gather_object([fault]) if each]:
            remedy = "rollout.transfer=folder sends weights through a shared folder"
            raise TrainingError(f"weights could not be sent by NCCL to {self._named} ({faults[0]}); {remedy}")
        self._answers = self.on_main(lambda: self._query_check(name, self._tensors))
        self._loaded = name

    def _query_check(self, name: str, sent: SentTensors) -> list[SampledTokens]:
        """Return the server's answers to the sync check; a TrainingError if its tensor is not the one sent."""
        answers = self._server.complete(self._check_prompts, name, **CHECK_SAMPLING)  # an adapter is applied only then
        workers = self._server.read(sent.request, name) if sent.request else []
        self._check_tensor(sent, sent.expected, workers, self._named)
        return answers

    def _check_completions(self) -> list[SampledTokens]:
        return self._answers

    def _sample(self, prompts: list[list[int]], num_generations: int, profiler: Any) -> Any:
        all_prompts, own = self.gathered(prompts)
        found = self.complete(all_prompts, **self._sampling)[own]
        return prompts, [c.token_ids for c in found], [[[value] for value in c.log_probs] for c in found], None

    @property
    def _sampling(self) -> dict[str, Any]:
        """The sampling parameters of a request."""
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

    def _prefix_cache(self) -> Lookups:
        return self._lookups  # none on the other ranks: the ranks' are added up

    def _restart_message(self, action: str, fault: OtherWeightsError) -> str:
        return (
            f"{self._named} failed or came back with other weights {_RESTARTS} times while it {action}, at last: "
            f"{fault}. Its log says why it stops; if it did not, see that no other run gives it weights"
        )

    def on_main(self, work: Callable[[], T]) -> T:
        """Do `work` on the main process and return its result on all ranks; if it fails, all raise TrainingError."""
        found, fault = None, None
        if self.accelerator.is_main_process:
            try:
                found = run_with_timeout(self.limit_s, work)
            except ThinkAsLocalsError as error:
                fault = f"{error}"
            except Exception as error:  # any exception: the other ranks wait
                fault = (
                    f"{type(error).__name__}: {error}: while {self._named} was asked to sample or "
                    f"to load weights from {self._weights}, in {self._timeout_s:g} s (rollout.timeout_s)"
                )
        found, fault = broadcast_object_list([found, fault])
        if fault is not None:
            raise TrainingError(fault)
        return cast("T", found)
