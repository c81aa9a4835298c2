"""The whole way on two cores, from a teacher behind vLLM to a leaderboard and r2.

teacher -> demonstrations -> SFT and GRPO of a fresh judge -> ablations -> paired table -> best-of-N -> r2, leaderboard

python tests/benchmarks/walk.py [FOLDER]      what is done in the folder is not done again; figures in walk.json
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

PORT = 8177
URL = f"http://127.0.0.1:{PORT}"
# vLLM on few cores: threads that are not bound, and a small cache.
SETTINGS = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
VARIANTS = ("full", "without_gain", "without_correctness")
MIX = [
    *("data=mix", "data.mix.customs=quickstart_cards", "data.mix.words=quickstart_cards"),
    "data.mix.customs.groups=[everyday_breakfast,street_snack,greeting_gesture,lucky_charm,gift_taboo,warned_about]",
    "data.mix.words.groups=[idiom_heavy_rain,idiom_very_easy]",
]
SETS = [  # questions that no judge here has seen: what it knows of them is chance
    *("eval.sets.unseen=culture_cards", "eval.sets.unseen.data.languages=[en]"),
    *("eval.sets.spanish=culture_cards", "eval.sets.spanish.data.languages=[es]"),
    *("eval.sets.pairs=culture_cards", "eval.sets.pairs.data.languages=[en]", "eval.sets.pairs.data.num_responses=2"),
    *(f"eval.sets.{name}.data.groups=[egg_dish,hot_drink]" for name in ("unseen", "spanish", "pairs")),
]
SCRATCH = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
SCRATCH |= {"num_key_value_heads": 1, "num_subwords": 400, "num_phrases": 1024}


class Walk:
    """The stages in one folder, and how many seconds, and seconds of CPU, each took over all attempts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._times = self.folder / "times.json"
        self.times: dict[str, list[float]] = json.loads(self._times.read_text()) if self._times.is_file() else {}

    def tal(self, name: str, *words: str) -> None:
        """Run a command of `tal` as the run of a name, or continue it."""
        words = (*words, f"run.dir={self.folder}", f"run.name={name}", "run.resume=auto")
        subprocess.run([sys.executable, "-m", "think_as_locals", "-q", *words], check=True)

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


def make_policy(folder: Path, answers: Sequence[tuple[str, str]], steps: int) -> None:
    """Make a small chat model that gives these answers to these prompts, each as often as it is among them."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    from think_as_locals.config.schema import ScratchSection
    from think_as_locals.engines import Chat
    from think_as_locals.reward_models.scratch import make_judge

    if (folder / "model").is_dir():
        return
    make_judge(
        folder / "untrained",
        [text for row in answers for text in row],
        ScratchSection(**SCRATCH, initializer_range=0.06),
        0,
    )
    chat = Chat(AutoTokenizer.from_pretrained(folder / "untrained"))
    prompts = chat.encode([[{"role": "user", "content": prompt}] for prompt, _ in answers])
    texts = chat.tokenizer([answer for _, answer in answers], add_special_tokens=False)["input_ids"]
    said = [[*text, chat.tokenizer.eos_token_id] for text in texts]
    rows = [
        {"input_ids": [*prompt, *text], "labels": [-100] * len(prompt) + text}
        for prompt, text in zip(prompts, said, strict=True)
    ]
    plain = {"use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
    arguments = SFTConfig(
        output_dir=str(folder / "trained"),
        max_steps=steps,
        learning_rate=5e-3,
        warmup_steps=10,
        per_device_train_batch_size=64,
        gradient_checkpointing=False,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        logging_steps=steps,
        **plain,
    )
    trainer = SFTTrainer(
        str(folder / "untrained"), arguments, train_dataset=Dataset.from_list(rows), processing_class=chat.tokenizer
    )
    trainer.train()
    trainer.save_model(str(folder / "unfinished"))
    (folder / "unfinished").rename(folder / "model")


def make_policies(walk: Walk) -> None:
    """Make a policy that is right in two of five answers, and one that always is, whose log-probabilities tell."""
    from think_as_locals.config.checks import load_recipe
    from think_as_locals.data import load

    items = load(load_recipe("quickstart").data, 0).train
    rng = random.Random(0)
    right = [(item.prompt, item.responses[item.best]) for item in items]
    mixed = [(item.prompt, item.responses[item.best if rng.random() < 0.2 else rng.randrange(4)]) for item in items]
    make_policy(walk.folder / "policy", mixed, steps=250)
    make_policy(walk.folder / "truth", right, steps=250)


def main(folder: Path) -> None:
    """Walk, and print the figures."""
    walk = Walk(folder)
    policies = multiprocessing.get_context("spawn").Process(target=make_policies, args=(walk,))
    policies.start()  # on the other core: they need no judge
    with walk.timed("teacher"):
        walk.tal("teacher", "run", "quickstart", "eval.max_items=200")
    teacher = ["teacher=server", f"teacher.url={URL}/v1", "teacher.model=teacher", "teacher.key_variable=null"]
    teacher += ["teacher.prompt=compact", "teacher.max_completion_length=72", "teacher.concurrency=64"]
    shown = walk.folder / "shown" / "demonstrations.jsonl"
    if not shown.is_file():
        with walk.timed("demonstrations"), served(walk.model("teacher")):
            walk.tal("shown", "demonstrate", *teacher, "data=quickstart_cards", "tries=2")
    with walk.timed("fresh judge"):
        few = [f"sft.data={shown}", "sft.max_steps=1200", "eval.max_items=120", "grpo.max_steps=15"]
        walk.tal("fresh", "run", "quickstart", *few, *MIX, *SETS)
    with walk.timed("ablations"):
        base = ["sft=null", "model.scratch=null", f"model.path={walk.model('base')}", "eval.every_steps=30"]
        walk.tal("ablations", "run", "-m", "ablations_quickstart", *base, "sweep=joblib", "hydra.launcher.n_jobs=2")
    with walk.timed("policies, beside the others"):
        policies.join()
    with walk.timed("downstream"):
        downstream(walk)
        runs = [str(walk.folder / name) for name in ("teacher", "fresh", "valid")]
        board = ["leaderboard", *runs, "--out", str(walk.folder)]
        subprocess.run([sys.executable, "-m", "think_as_locals", *board], check=True)
    report(walk)


def downstream(walk: Walk) -> None:
    """Have every judge select of four answers of the policy, and correlate with their accuracy."""
    names = ("start", "teacher", "base", "fresh", *VARIANTS)
    judges = [word for name in names for word in (f"rms.{name}=judge", f"rms.{name}.path={walk.model(name)}")]
    task = ["sample=prompts", "sample.data=quickstart_cards", "sample.num_candidates=4"]
    policy = [
        "sample.policy=model",
        f"sample.policy.path={walk.folder}/policy/model",
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
    found["variants"] = walk.read("ablations/variants.json")["variants"]
    print((walk.folder / "ablations" / "variants.md").read_text())
    pearson = valid["pearson"]
    print(f"r2 {pearson['r2']:.3f}, r {pearson['r']:.2f} {pearson['ci95']}, over {valid['n']} reward models")
    print("in all {:.0f} s, {:.0f} s of CPU".format(*map(sum, zip(*walk.times.values(), strict=True))))
    (walk.folder / "walk.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/walk"))
