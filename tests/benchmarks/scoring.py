"""How much faster a scalar reward model is whose responses share their prompt: `make bench`.

The same random model and tokens, each response in a row of its own (SCPO's update then is TRL's RewardTrainer; the loop
of RewardBench's runner gives such rows to a pipeline, in batches as they come) and packed behind one prompt. Both sides
take turns, in a process that keeps the memory it frees; a first run of each does not count. What they give is compared:
scores, losses, norms of gradients.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))

import torch
from rich.console import Console
from rich.table import Table
from transformers import Qwen3Config, Qwen3ForSequenceClassification, pipeline

from think_as_locals.config.checks import load_config
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.reward_models.scalar import ScalarRM
from think_as_locals.reward_models.scratch import train_tokenizer
from think_as_locals.runtime.files import write_json
from think_as_locals.scpo.trainer import make_trainer
from think_as_locals.training.checkpoints import Checkpoints
from think_as_locals.training.grpo import trl_arguments
from think_as_locals.types import Item

Run = Callable[[bool], list[float]]  # shared or not -> numbers that have to be the same
TARGETS = {"scoring": 2.5, "rewardbench": 2.5, "update": 1.4}


def make_rm(folder: Path, hidden: int, layers: int) -> ScalarRM:
    """A classifier with random weights."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["which of these is done there"], 300, 0)
    sizes = {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers, "head_dim": 64}
    heads = {"num_attention_heads": max(1, hidden // 64), "num_key_value_heads": max(1, hidden // 128)}
    config = Qwen3Config(**sizes, **heads, vocab_size=len(tokenizer), num_labels=1, pad_token_id=tokenizer.pad_token_id)
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ScalarRM.load(str(folder), max_length=4096)


def text(rm: ScalarRM, rng: random.Random, tokens: int) -> str:
    """Some words of about so many tokens."""
    words = " ".join(rng.choices(["which", "of", "these", "is", "done", "there"], k=2 * tokens))
    return str(rm.chat.tokenizer.decode(rm.chat.tokenizer(words)["input_ids"][:tokens]))


def scoring(rm: ScalarRM, prompt: int, completion: int, rewardbench: bool = False) -> tuple[list[list[int]], Run]:
    """Best-of-4: the lengths of an item's rows, and a run over four items; RewardBench's are of several lengths."""
    rng = random.Random(1)
    texts = {"culture": None, "language": "en", "domain": "value", "source": "bench", "best": 0}
    shortest = completion // 4 if rewardbench else completion
    items = [
        Item(
            id=name,
            prompt=text(rm, rng, prompt),
            responses=tuple(text(rm, rng, rng.randint(shortest, completion)) for _ in range(4)),
            group=name,
            **texts,
        )
        for name in "abcd"
    ]
    requests = [request for item in items for request in rm.requests(item)]
    rows = [row["input_ids"] for row in rm.rows(requests[:4])]

    def ours(model: ScalarRM) -> list[float]:
        return [score for of_item in model.score(items) for score in of_item]

    if not rewardbench:
        separate = replace(rm, unshared_reason="for comparison")
        return rows, lambda shared: ours(rm if shared else separate)
    # rewardbench 0.1.4, scripts/run_v2.py: all texts are written before its loop, which tokenises and pads them.
    written = [rm.chat.tokenizer.decode(row["input_ids"]) for row in rm.rows(requests)]
    pipe = pipeline("text-classification", model=rm.model, tokenizer=rm.chat.tokenizer)
    options = {"truncation": True, "padding": True, "max_length": rm.max_length, "function_to_apply": "none"}
    options |= {"batch_size": rm.batch_size, "return_token_type_ids": False}

    def theirs() -> list[float]:
        batches = (written[i : i + rm.batch_size] for i in range(0, len(written), rm.batch_size))
        return [result["score"] for batch in batches for result in pipe(batch, **options)]

    return rows, lambda shared: ours(rm) if shared else theirs()


def update(rm: ScalarRM, prompt: int, completion: int, folder: Path) -> tuple[list[list[int]], Run]:
    """SCPO: a pair's rows, and a forward and backward pass of four pairs."""
    rng = random.Random(1)
    tokens = lambda count: [rng.randrange(9, 200) for _ in range(count)]  # noqa: E731
    pairs = []
    for _ in range(4):
        begins = tokens(prompt)
        ids = [begins + tokens(completion) for _ in range(2)]
        pairs.append(tuple({"input_ids": row, "attention_mask": [1] * len(row)} for row in ids))
    config = load_config("recipes/scpo_quickstart.yaml", ["model.dtype=float32"])
    assert isinstance(config, ScpoConfig)
    trainer = make_trainer(
        rm,
        pairs,
        [1.0] * len(pairs),
        arguments=trl_arguments(config, config.scpo, folder) | {"max_steps": 1},
        checkpoints=Checkpoints(folder, 1),
        lora=None,
        dropout=False,
    )
    trainer.current_gradient_accumulation_steps = 1
    batch = trainer.data_collator([{"pair": number} for number in range(len(pairs))])

    def run(shared: bool) -> list[float]:
        trainer.unshared_reason = None if shared else "for comparison"
        trainer.model.zero_grad()
        loss = trainer.training_step(trainer.model, dict(batch), None)
        return [float(loss), *(float(parameter.grad.norm()) for parameter in trainer.model.parameters())]

    return [row["input_ids"] for row in pairs[0]], run


def measure(name: str, rows: list[list[int]], run: Run, repetitions: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Seconds of both sides, which take turns, and how far their numbers are apart."""
    found = {shared: run(shared) for shared in (False, True)}  # a warm-up
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(repetitions):
        for shared, times in seconds.items():
            start = clock()
            run(shared)
            times.append(clock() - start)
    common = next(i for i, tokens in enumerate(zip(*rows, strict=False)) if len(set(tokens)) > 1)
    return {
        "case": name,
        "target": TARGETS[name],
        "seconds": {"separate": seconds[False], "shared": seconds[True]},
        "times_least": min(seconds[False]) / min(seconds[True]),
        "times_median": statistics.median(seconds[False]) / statistics.median(seconds[True]),
        "token_bound": sum(map(len, rows)) / (common + sum(len(row) - common for row in rows)),
        "difference": max(abs(one - other) for one, other in zip(found[True], found[False], strict=True)),
    }


def main() -> None:
    """Measure both cases, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--completion", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="CPU seconds, where other processes use the machine")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    lengths = (arguments.prompt, arguments.completion)
    how = arguments.repetitions, time.process_time if arguments.cpu else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        rm = make_rm(Path(folder) / "model", arguments.hidden, arguments.layers)
        results = [measure("scoring", *scoring(rm, *lengths), *how)]
        results.append(measure("rewardbench", *scoring(rm, *lengths, rewardbench=True), *how))
        results.append(measure("update", *update(rm, *lengths, Path(folder)), *how))
    arguments.out.mkdir(parents=True, exist_ok=True)
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "trl")}
    written = arguments.out / "scoring.json"
    write_json(written, {"lengths": lengths, "versions": versions, "results": results})
    table = Table("case", "times (least)", "times (median)", "target", "token bound", "difference")
    for result in results:
        least, median, target = (result[key] for key in ("times_least", "times_median", "target"))
        met = "green" if least >= target else "red"
        bound, difference = f"{result['token_bound']:.2f}", f"{result['difference']:.0e}"
        table.add_row(result["case"], f"[{met}]{least:.2f}[/]", f"{median:.2f}", f">= {target}", bound, difference)
    Console().print(table)
    print(written)


if __name__ == "__main__":
    main()
