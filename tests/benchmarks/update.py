"""How much faster than TRL's own GRPOTrainer an update is: `make bench`.

Both trainers get the same model, seed, rollouts and loss, padded as TRL pads them; their updates (all micro-batches of
a generation batch, forward and backward) alternate after one of each that does not count. Ratios are of the least and
of the median seconds. Beside them stands how many times fewer tokens a shared prompt leaves, G(P + C) / (P + GC), and
what else there is: padding, padded positions that TRL scores, groups without advantage. Where it can, TRL's trainer
also runs rows without padding, as verl does, and the prefix trie of TRL's AsyncGRPOTrainer (`peers.py`). All have the
same allocator settings. The last case asks what scoring every rubric (`criteria_gain`) adds to a whole step. `--runs 3`
measures all of it three times: least, median and greatest ratio.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import multiprocessing
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
# Both sides keep the memory that they free: else the one with the larger tensors has it from the system anew each time.
# Read when a process starts, and those that measure start after this.
os.environ |= {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**36)}

import torch
from datasets import Dataset
from peers import SEGMENTS, TrieTrainer, UnpaddedTrainer
from peft import LoraConfig
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from trl import GRPOConfig, GRPOTrainer

from think_as_locals.engines import Chat
from think_as_locals.reward_models.scratch import train_tokenizer
from think_as_locals.runtime.files import write_json
from think_as_locals.training.criteria_gain import CriteriaGainScorer, GainQuery
from think_as_locals.training.shared_prefix import SharedPrefixTrainer

TRAINERS = {"trl": GRPOTrainer, "unpadded": UnpaddedTrainer, "trie": TrieTrainer, "shared": SharedPrefixTrainer}
UPDATES, UNPACKED, GAINS = tuple(TRAINERS), ("trl", "shared"), ("shared", "gain")  # TRL's trie takes no such layers


@dataclass(frozen=True)
class Case:
    """One row of the table: lengths in tokens of each group's prompt, and the range of completions' lengths.

    The target is how many times as fast the last variant is to be as the first.
    """

    name: str
    prompts: tuple[int, ...]
    completions: tuple[int, int]
    target: float
    checkpointing: bool = False
    idle_groups: int = 0
    variants: tuple[str, ...] = UPDATES
    whole_step: bool = False
    """Whether rollouts are sampled as well."""
    family: str = "qwen3"


# What models of a family have beside their sizes.
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "gemma3_text": {"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"] * 3},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 128},
    "qwen3_5_text": {
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
    },
}

CASES = (
    Case("P 512, C 64", (512,), (64, 64), 4.8),
    Case("P 1024, C 128, checkpointing", (1024,), (128, 128), 5.5, checkpointing=True),
    Case("P 1024, C 256", (1024,), (256, 256), 3.0),
    Case("ragged: P 350-1024, C 24-128", (350, 420, 512, 1024), (24, 128), 7.5),
    Case("ragged, half of the groups at zero advantage", (350, 420, 512, 1024), (24, 128), 12, idle_groups=2),
    Case("sliding windows (Gemma 3), P 1024, C 128", (1024,), (128, 128), 3, family="gemma3_text"),
    Case("attention sinks (gpt-oss), P 1024, C 128", (1024,), (128, 128), 3, variants=UNPACKED, family="gpt_oss"),
    Case("gated delta nets (Qwen3.5), P 1024, C 128", (1024,), (128, 128), 3, variants=UNPACKED, family="qwen3_5_text"),
    Case("criteria_gain in a whole step, P 1024, C 128", (1024,), (128, 128), 1 / 1.1, variants=GAINS, whole_step=True),
)
MEMORY_TARGET = 0.5


class UpdateBenchmark:
    """Trainers of one case, and the batch they are given."""

    adapter: LoraConfig | None = None
    clock = time.perf_counter

    def __init__(self, case: Case, arguments: argparse.Namespace, folder: Path) -> None:
        self.case, self.arguments, self.folder = case, arguments, folder
        self.prompts = [max(2, length // arguments.shrink) for length in case.prompts]
        self.completions = tuple(max(2, length // arguments.shrink) for length in case.completions)
        self.tokenizer = train_tokenizer(["which of these is done there"], 300, 0)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._make_model()
        self.batch = self._batch()
        self.trainers = {variant: self._trainer(variant) for variant in case.variants}

    def _make_model(self) -> None:
        hidden = self.arguments.hidden
        torch.manual_seed(0)
        family = FAMILIES[self.case.family]
        kinds = family.get("layer_types", [None] * self.arguments.layers)[-self.arguments.layers :]
        config = CONFIG_MAPPING[self.case.family](
            **{**family, "layer_types": kinds} if kinds[0] else family,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=len(kinds),
            num_attention_heads=max(1, hidden // 64),
            num_key_value_heads=max(1, hidden // 128),
            head_dim=64,
            vocab_size=self.arguments.vocabulary,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
            eos_token_id=self.tokenizer.eos_token_id,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        AutoModelForCausalLM.from_config(config).save_pretrained(self.folder)

    def _model(self, variant: str) -> Any:
        dtype = "bfloat16" if self.device == "cuda" else "float32"
        kernel = "eager" if self.case.family == "gpt_oss" else SEGMENTS if variant in ("unpadded", "trie") else "sdpa"
        return AutoModelForCausalLM.from_pretrained(self.folder, dtype=dtype, attn_implementation=kernel)

    def _trainer(self, variant: str) -> GRPOTrainer:
        g, shortest, longest = self.arguments.generations, *self.completions
        on_gpu = self.device == "cuda"
        trainer = TRAINERS.get(variant, SharedPrefixTrainer)(
            model=self._model(variant),
            peft_config=self.adapter,
            reward_funcs=lambda completion_ids, **_: self._rewards(variant, completion_ids),
            args=GRPOConfig(
                output_dir=str(self.folder / "out"),
                use_cpu=not on_gpu,
                bf16=on_gpu,
                gradient_checkpointing=self.case.checkpointing,
                per_device_train_batch_size=g,
                gradient_accumulation_steps=len(self.prompts),
                num_generations=g,
                max_completion_length=longest,
                generation_kwargs={"min_new_tokens": shortest},
                loss_type="dapo",
                router_aux_loss_coef=0.0,  # TRL's counts padding, so that rows with it are not shared
                beta=0.0,
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list(self._rows()),
            processing_class=self.tokenizer,
        )
        trainer.model.train()
        if self.case.checkpointing:  # as Trainer.train does
            trainer.model.gradient_checkpointing_enable(trainer.args.gradient_checkpointing_kwargs)
        trainer.current_gradient_accumulation_steps = len(self.prompts)
        trainer.create_optimizer()
        if not self.case.whole_step:
            trainer._generate_and_score_completions = lambda _: dict(self.batch)
        return trainer

    def _rewards(self, variant: str, completion_ids: list[list[int]]) -> list[float]:
        if variant == "gain":
            rubric = self._text(self.completions[0] // 2)
            prompt = self.trainers[variant].train_dataset[0]["prompt"]
            queries = [
                GainQuery(row=0, prompt=prompt, completion_ids=ids, rubric=rubric, verdict=1) for ids in completion_ids
            ]
            CriteriaGainScorer(self.trainers[variant], Chat(self.tokenizer), "policy").score(queries)
        return [float(sum(ids) % 7) for ids in completion_ids]

    def _rows(self) -> list[dict[str, Any]]:
        return [{"prompt": [{"role": "user", "content": self._text(length)}]} for length in self.prompts]

    def _text(self, tokens: int) -> str:
        text = self.tokenizer.decode([self.tokenizer.vocab_size - 1 - i % 40 for i in range(tokens)])
        return self.tokenizer.decode(self.tokenizer(text)["input_ids"][:tokens])

    def _batch(self) -> dict[str, Any]:
        """Rollouts as TRL hands them over: prompts padded left, completions right."""
        rng = random.Random(1)
        generator = torch.Generator().manual_seed(1)
        g, width, longest = self.arguments.generations, max(self.prompts), max(self.completions)
        lengths = [rng.randint(*self.completions) for _ in range(g * len(self.prompts))]
        prompt_mask = torch.stack([(torch.arange(width) >= width - n).long() for n in self.prompts for _ in range(g)])
        completion_mask = torch.stack([(torch.arange(longest) < n).long() for n in lengths])
        vocabulary = self.arguments.vocabulary
        ids = torch.randint(5, vocabulary, (len(self.prompts), width), generator=generator).repeat_interleave(g, 0)
        advantages = torch.randn(len(lengths), generator=generator)
        advantages[: g * self.case.idle_groups] = 0
        batch = {
            "prompt_ids": ids * prompt_mask,
            "prompt_mask": prompt_mask,
            "completion_ids": torch.randint(5, vocabulary, completion_mask.shape, generator=generator)
            * completion_mask,
            "completion_mask": completion_mask,
            "advantages": advantages,
            "num_items_in_batch": torch.tensor(sum(lengths)),
        }
        return {key: value.to(self.device) for key, value in batch.items()}

    def factors(self) -> dict[str, float]:
        """How many times fewer tokens and positions there are, by what leaves them out."""
        groups, g = len(self.prompts), self.arguments.generations
        prompts, completions = (
            self.batch[f"{of}_mask"].sum(1).view(groups, g).double() for of in ("prompt", "completion")
        )
        padded = self.batch["prompt_mask"].numel() + self.batch["completion_mask"].numel()
        separate = float((prompts + completions).sum())
        shared = float((prompts[:, 0] + completions.sum(1)).sum())
        return {
            "token_bound": separate / shared,
            "padding": padded / separate,
            "positions": self.batch["completion_mask"].numel() / float(completions.sum()),
            "idle": groups / (groups - self.case.idle_groups),
        }

    def update(self, variant: str) -> float:
        """Seconds of one update, with rollouts where the case says so."""
        trainer = self.trainers[variant]
        trainer.model.zero_grad()
        trainer._step = 0
        rows = [row for row in self._rows() for _ in range(self.arguments.generations)]
        torch.manual_seed(2)
        start = self.clock()
        for _ in self.prompts:
            trainer.training_step(trainer.model, rows, None)
        if self.case.whole_step:
            trainer.optimizer.step()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return self.clock() - start

    def gradient(self, variant: str) -> torch.Tensor:
        """What the last update left."""
        gradients = [parameter.grad for parameter in self.trainers[variant].model.parameters()]
        return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None]).float()


def measure(bench: UpdateBenchmark, repetitions: int) -> dict[str, Any]:
    """Seconds of alternating updates, peak memory, and how far the gradients are apart."""
    seconds: dict[str, list[float]] = {variant: [] for variant in bench.trainers}
    memory: dict[str, float] = {}
    first, *_, last = bench.case.variants
    bench.update(last)  # its first pass compares itself with TRL's
    for repetition in range(repetitions + 1):
        for variant in bench.trainers:
            # The first does not count. Memory is measured there: what is given back for it has to be fetched again.
            with nullcontext() if repetition else _peak_memory(bench.device) as peak:
                spent = bench.update(variant)
            if peak is not None:
                memory[variant] = peak[0]
            else:
                seconds[variant].append(spent)
    result = {
        "case": bench.case.name,
        "target": bench.case.target,
        "seconds": seconds,
        "least": _ratios({variant: min(times) for variant, times in seconds.items()}),
        "median": _ratios({variant: statistics.median(times) for variant, times in seconds.items()}),
        "memory_mb": {variant: memory[variant] / 2**20 for variant in (first, last)},
    }
    if not bench.case.whole_step:
        reference, *others = (bench.gradient(variant) for variant in bench.case.variants)
        result["gradient_error"] = max(float((other - reference).norm() / reference.norm()) for other in others)
        result["memory_of_trl"] = memory[last] / memory[first]
        result |= bench.factors()
    return result


def _ratios(seconds: dict[str, float]) -> dict[str, float]:
    """How many times as fast as the first variant each one is."""
    first = next(iter(seconds.values()))
    return {variant: first / spent for variant, spent in seconds.items()}


@contextmanager
def _peak_memory(device: str) -> Iterator[list[float]]:
    """Bytes that a block adds at its peak: the resident set of the process, or what is allocated on the GPU."""
    peak: list[float] = []
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = float(torch.cuda.memory_allocated())
    else:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
        before = _status("VmRSS")
    yield peak
    peak.append((float(torch.cuda.max_memory_allocated()) if device == "cuda" else _status("VmHWM")) - before)


def _status(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024.0 * int(line.split()[1])


def table(runs: list[list[dict[str, Any]]], title: str) -> Table:
    """The ratios of all runs (least, median, greatest), and what explains them."""
    shown = Table(title=title)
    for column in ("case", "compared", "seconds", "by least", "by median", "target"):
        shown.add_column(column)
    for column in ("token bound", "padding", "positions", "idle", "unpadded", "trie", "peak memory", "gradient"):
        shown.add_column(column)
    for results in zip(*runs, strict=True):
        result = results[0]
        first, *_, last = result["median"]
        least, median = (sorted(each[by][last] for each in results) for by in ("least", "median"))
        met = "green" if statistics.median(median) >= result["target"] else "red"
        shown.add_row(
            result["case"],
            f"{first}, {last}",
            ", ".join(f"{statistics.median(result['seconds'][variant]):.2f}" for variant in (first, last)),
            _spread(least),
            f"[{met}]{_spread(median)}[/]",
            f">= {result['target']:.3g}",
            *(
                f"{result[name]:.2f}" if name in result else ""
                for name in ("token_bound", "padding", "positions", "idle")
            ),
            *(_median(results, variant) for variant in ("unpadded", "trie")),
            f"{result['memory_of_trl']:.2f} (<= {MEMORY_TARGET})" if "memory_of_trl" in result else "",
            f"{result['gradient_error']:.0e}" if "gradient_error" in result else "",
        )
    return shown


def _median(results: Sequence[dict[str, Any]], variant: str) -> str:
    ratios = [each["median"][variant] for each in results if variant in each["median"]]
    return f"{statistics.median(ratios):.2f}" if ratios else ""


def _spread(ratios: list[float]) -> str:
    if len(ratios) == 1:
        return f"{ratios[0]:.2f}"
    return ", ".join(f"{each:.2f}" for each in (ratios[0], statistics.median(ratios), ratios[-1]))


def main() -> None:
    """Measure all cases, print the table, write JSON and a picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=16_384)
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="CPU seconds, where other processes use the machine")
    parser.add_argument("--shrink", type=int, default=1, help="divide all lengths by this, to try the script")
    arguments = parser.parse_args()
    threads = int(os.environ["OMP_NUM_THREADS"])
    chosen = [case for case in CASES if arguments.only in case.name]
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "CPU"
    shape = f"hidden {arguments.hidden} x {arguments.layers}, G {arguments.generations}, {threads} threads, {machine}"
    arguments.out.mkdir(parents=True, exist_ok=True)
    runs: list[list[dict[str, Any]]] = []
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "trl")}
    allocator = {name: os.environ[name] for name in os.environ if name.startswith("MALLOC_")}
    for _ in range(arguments.runs):
        runs.append([])
        for result in _results(chosen, arguments):
            runs[-1].append(result)
            found = {"shape": shape, "allocator": allocator, "versions": versions, "runs": runs}
            write_json(arguments.out / "update.json", found)  # after each case: all of them take an hour
    console = Console(record=True, width=180)
    console.print(table(runs, f"How many times as fast ({shape})"))
    console.save_svg(str(arguments.out / "update.svg"), title="make bench")
    print(f"{arguments.out / 'update.json'}, {arguments.out / 'update.svg'}")


def _results(cases: list[Case], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    # A process for each case: memory that another one left to the allocator makes the slower side faster.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["think_as_locals.training.shared_prefix"])
    alone = ProcessPoolExecutor(1, context, max_tasks_per_child=1)
    with alone, Progress(transient=True) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            progress.update(task, description=case.name)
            yield alone.submit(_result, case, arguments).result()
            progress.advance(task)


def _result(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if arguments.cpu:
        UpdateBenchmark.clock = time.process_time
    with tempfile.TemporaryDirectory() as folder:
        return measure(UpdateBenchmark(case, arguments, Path(folder)), arguments.repetitions)


if __name__ == "__main__":
    main()
