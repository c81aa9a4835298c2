"""What a request to `tal serve` takes beyond the model's own time: `make bench`.

The same items are judged by a judge in this process and, one a request, by the same judge behind `tal serve` in another
process, alternately. What a request takes longer than the direct call before and after it (their mean) is overhead:
HTTP on both sides, validation, the window in which requests wait for one another. At concurrency 16 as many requests
come at once, and the direct call has their items in one batch.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from served_app import tal_serve

from think_as_locals.config.checks import load_recipe
from think_as_locals.data import read
from think_as_locals.data.splits import select
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.scratch import make_judge
from think_as_locals.runtime.files import write_json
from think_as_locals.types import Item

KEY = "a-key-for-the-benchmark"


async def request(client: httpx.AsyncClient, item: Item) -> float:
    """Seconds that one request takes."""
    body = {"items": [{"prompt": item.prompt, "responses": list(item.responses), "culture": item.culture}]}
    start = time.perf_counter()
    (await client.post("/judge", json=body)).raise_for_status()
    return time.perf_counter() - start


def direct(judge: Judge, items: Sequence[Item]) -> float:
    """Seconds that the judge itself takes, all items in one batch."""
    start = time.perf_counter()
    judge.judge(items)
    return time.perf_counter() - start


async def measure(judge: Judge, url: str, items: Sequence[Item], concurrency: int) -> dict[str, Any]:
    """Overhead of each request, in milliseconds, and the direct calls' seconds."""
    overhead, seconds = [], []
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=600) as client:
        for start in track(range(0, len(items), concurrency), description=f"{concurrency} at once", transient=True):
            together = items[start : start + concurrency]
            before = direct(judge, together)
            took = await asyncio.gather(*(request(client, item) for item in together))
            own = (before + direct(judge, together)) / 2
            seconds.append(own)
            overhead += [1000 * (each - own) for each in took]
    cuts = statistics.quantiles(overhead, n=100, method="inclusive")
    return {
        "concurrency": concurrency,
        "requests": len(overhead),
        "model_ms": 1000 * statistics.median(seconds),
        "overhead_ms": {"p50": cuts[49], "p99": cuts[98]},
    }


def main() -> None:
    """Measure both concurrencies, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--requests", type=int, default=320, help="at each concurrency")
    parser.add_argument("--tokens", type=int, default=32)
    arguments = parser.parse_args()
    config = load_recipe("recipes/quickstart.yaml", ["run.name=bench"])
    items = select(tuple(read(config.data, 0)), arguments.requests)
    with tempfile.TemporaryDirectory() as folder:
        texts = [text for item in items for text in (item.prompt, *item.responses)]
        parameters = make_judge(Path(folder), texts, config.model.scratch, 0)
        judge = Judge.load(folder, max_completion_length=arguments.tokens)
        overrides = [f"judge.max_completion_length={arguments.tokens}", "limits.requests_per_minute=1000000"]
        with tal_serve(sys.executable, Path.cwd(), folder, *overrides, key=KEY) as (_, url):
            asyncio.run(measure(judge, url, items[:32], 16))  # both warm
            results = [asyncio.run(measure(judge, url, items, concurrency)) for concurrency in (1, 16)]
    shape = {"tokens": arguments.tokens, "parameters": parameters}
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "fastapi", "uvicorn")}
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / "serving.json", {**shape, "versions": versions, "results": results})
    title = f"Milliseconds of a request to tal serve beyond the model's own ({shape})"
    shown = Table("requests at once", "requests", "the model's own", "p50", "p99", title=title)
    for result in results:
        times = (result["model_ms"], result["overhead_ms"]["p50"], result["overhead_ms"]["p99"])
        shown.add_row(str(result["concurrency"]), str(result["requests"]), *(f"{each:.1f}" for each in times))
    Console(width=120).print(shown)


if __name__ == "__main__":
    main()
