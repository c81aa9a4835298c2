"""The whole pipeline on two cores, from a teacher behind vLLM to a leaderboard and r2.

teacher -> demonstrations -> SFT and GRPO of a fresh judge -> ablations -> paired table -> best-of-N -> r2, leaderboard

The judges learn a mix: the culture cards, with four responses, and pairs of people's answers, from BLEnD's folder.

python tests/benchmarks/walk.py BLEND [FOLDER]      what is done in the folder is not done again; figures in walk.json
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from policies import make_policies

PORT = 8177
URL = f"http://127.0.0.1:{PORT}"
# Several processes share the cores, so each has one thread; the caller's setting would change how sums are rounded.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
# vLLM on few cores: threads that are not bound, and a small cache.
SETTINGS = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
# The training that runs alone takes both cores: one process on each, and half of a batch in each.
LAUNCH = ["launch", "quickstart", "--config_file", "cpu_ddp"]
LAUNCH += ["sft.per_device_train_batch_size=12", "grpo.per_device_train_batch_size=64"]
VARIANTS = ("full", "without_gain", "without_correctness")
SETS = [  # cards as pairs and BLEnD with four responses: each is known only the other way round
    *("eval.sets.four_orders=quickstart_cards", "eval.sets.four_orders.orders=4"),
    *("eval.sets.cards_as_pairs=quickstart_cards", "eval.sets.cards_as_pairs.data.num_responses=2"),
    *("eval.sets.blend_of_four=quickstart_blend", "eval.sets.blend_of_four.data.max_groups=4"),
    *(f"eval.sets.{name}.items=test" for name in ("four_orders", "cards_as_pairs", "blend_of_four")),
    "eval.leaks=report",  # the same questions, as in any split by pairing
]


def mix(blend: str) -> list[str]:
    """The sources that the judges are trained on."""
    return [
        *("data=mix", "data.mix.cards=quickstart_cards", "data.mix.blend=quickstart_blend"),
        *(f"data.mix.blend.{key}" for key in (f"path={blend}", "max_groups=4", "as_pairs=true")),
    ]


class Walk:
    """The stages in one folder, and how many seconds, and seconds of CPU, each took over all attempts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._times = self.folder / "times.json"
        self.times: dict[str, list[float]] = json.loads(self._times.read_text()) if self._times.is_file() else {}

    @contextmanager
    def started(self, name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command of `tal` as the run of a name, or continue it; at the end, wait for it."""
        command = [sys.executable, "-m", "think_as_locals", "-q", *words]
        with subprocess.Popen([*command, f"run.dir={self.folder}", f"run.name={name}", "run.resume=auto"]) as process:
            yield process
        if process.returncode:
            raise SystemExit(f"{name} ended with status {process.returncode}")

    def tal(self, name: str, *words: str) -> None:
        """Run such a command."""
        with self.started(name, *words):
            pass

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time that this takes."""
        start, cpu = time.monotonic(), _cpu_seconds()
        try:
            yield
        finally:
            spent = time.monotonic() - start, _cpu_seconds() - cpu
            self.times[stage] = [old + new for old, new in zip(self.times.get(stage, (0.0, 0.0)), spent, strict=True)]
            self.folder.mkdir(parents=True, exist_ok=True)
            self._times.write_text(json.dumps(self.times))
            print("{}: {:.0f} s, {:.0f} s of CPU".format(stage, *self.times[stage]), flush=True)

    def read(self, path: str) -> Any:
        return json.loads((self.folder / path).read_text())

    def model(self, name: str) -> Path:
        """The model of a judge by its name in the leaderboard."""
        if name in ("start", "base"):  # of the teacher, and of the fresh judge, before GRPO
            return self.folder / {"start": "teacher", "base": "fresh"}[name] / "cold_start" / "model"
        return next(self.folder.glob(f"ablations/variant-{name}-*/model"), self.folder / name / "model")


def _cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    return sum(os.times()[:4])


@contextmanager
def served(model: Path) -> Iterator[None]:
    """Serve a judge with vLLM's own OpenAI-compatible server."""
    words = ["--model", str(model), "--served-model-name", "teacher", "--port", str(PORT), "--dtype", "float32"]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words, "--enforce-eager"]
    command += ["--max-model-len", "2048", "--disable-uvicorn-access-log"]
    process = subprocess.Popen(command, env={**os.environ, **SETTINGS})
    try:
        while True:
            if process.poll() is not None:
                raise SystemExit(f"vLLM ended with status {process.returncode}")
            try:
                urlopen(f"{URL}/health", timeout=5)  # noqa: S310 - ours
                break
            except (URLError, OSError):
                time.sleep(1)
        yield
    finally:
        process.terminate()
        process.wait(60)


def main(blend: str, folder: Path) -> None:
    """Walk, and print the figures."""
    walk = Walk(folder)
    with walk.timed("teacher"):
        walk.tal("teacher", *LAUNCH, *mix(blend), "sft.max_steps=900", "eval.max_items=200")
    policies = multiprocessing.get_context("spawn").Process(target=make_policies, args=(walk.folder,))
    policies.start()  # beside the demonstrations, whose server takes one core
    teacher = ["teacher=server", f"teacher.url={URL}/v1", "teacher.model=teacher", "teacher.key_variable=null"]
    teacher += ["teacher.prompt=compact", "teacher.max_completion_length=72", "teacher.concurrency=64"]
    shown = walk.folder / "shown" / "demonstrations.jsonl"
    if not shown.is_file():
        with walk.timed("demonstrations"), served(walk.model("teacher")):
            walk.tal("shown", "demonstrate", *teacher, *mix(blend), "tries=2")
    few = [f"sft.data={shown}", "sft.max_steps=240", "eval.max_items=120", "grpo.max_steps=30", *mix(blend)]
    few += [*SETS, f"eval.sets.blend_of_four.data.path={blend}"]
    with walk.timed("fresh judge and ablations"), walk.started("fresh", *LAUNCH, *few) as fresh:
        base = walk.model("base")
        while not base.is_dir() and fresh.poll() is None:
            time.sleep(1)
        if not base.is_dir():
            raise SystemExit(f"{walk.folder / 'fresh'}: ended before its cold start was saved")
        # Beside the fresh judge's GRPO, since they start from its cold start too.
        words = ["sft=null", "model.scratch=null", f"model.path={base}", "eval.every_steps=30"]
        walk.tal("ablations", "run", "-m", "ablations_quickstart", *words, "sweep=joblib", "hydra.launcher.n_jobs=3")
    with walk.timed("policies, beside the others"):
        policies.join()
    with walk.timed("downstream"):
        downstream(walk)
        runs = [str(walk.folder / name) for name in ("teacher", "fresh", "valid")]
        board = ["leaderboard", *runs, "--out", str(walk.folder)]
        subprocess.run([sys.executable, "-m", "think_as_locals", *board], check=True)
    report(walk)


def downstream(walk: Walk) -> None:
    """Have every judge select of the policy's answers, mostly four distinct ones, and correlate with their accuracy."""
    names = ("start", "teacher", "base", "fresh", *VARIANTS)
    judges = [word for name in names for word in (f"rms.{name}=judge", f"rms.{name}.path={walk.model(name)}")]
    task = ["sample=prompts", "sample.data=quickstart_cards", "sample.num_candidates=24"]
    policy = [
        "sample.policy=model",
        f"sample.policy.path={walk.folder}/one_of_four/model",
        "sample.max_completion_length=48",
    ]
    scorer = ["sample.scorer=implicit", f"sample.scorer.path={walk.folder}/truth/model", "sample.scorer.reference=null"]
    measured = ["data=quickstart_cards", "eval.items=test", "eval.max_items=200", "~rms.deberta", "~rms.tulu"]
    walk.tal("valid", "run", "downstream", *task, *policy, *scorer, *judges, *measured)


def _place(path: Path) -> tuple[str, int]:
    return path.parent.name, int(path.stem[5:])


def report(walk: Walk) -> None:
    """Print the figures, and write them to `walk.json`."""
    shown, valid = walk.read("shown/yield.json"), walk.read("valid/validity.json")
    print(f"demonstrated: {100 * shown['yield']:.1f} % of {shown['n']} items, {shown['ci95']}")
    found: dict[str, Any] = {"times": walk.times, "yield": shown, "validity": valid, "measured": {}}
    for name in ("teacher", "fresh"):
        sets = [walk.folder / name / "carb", *sorted((walk.folder / name / "eval").glob("*"))]
        for path in sorted(chain.from_iterable(each.glob("step-*.json") for each in sets), key=_place):
            part = json.loads(path.read_text())
            figures = {key: part[key] for key in ("accuracy", "n", "ci95", "parse_failure")}
            found["measured"][f"{name} {path.parent.name} {path.stem}"] = figures
            print(f"{name} {path.parent.name} {path.stem}: {figures}")
    found["ablations"] = walk.read("ablations/sweep.json")["judges"]
    print((walk.folder / "ablations" / "sweep.md").read_text())
    pearson = valid["pearson"]
    print(f"r2 {pearson['r2']:.3f}, r {pearson['r']:.2f} {pearson['ci95']}, over {valid['n']} reward models")
    print("in all {:.0f} s, {:.0f} s of CPU".format(*map(sum, zip(*walk.times.values(), strict=True))))
    (walk.folder / "walk.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "runs/walk"))
