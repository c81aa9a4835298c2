"""The whole way on two cores: a teacher behind vLLM -> demonstrations -> SFT and GRPO of a fresh judge -> downstream.

python tests/benchmarks/walk.py [FOLDER]      what is done in the folder is not done again
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

PORT = 8177
URL = f"http://127.0.0.1:{PORT}"
# vLLM on few cores: threads that are not bound, and a small cache.
SETTINGS = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}


def tal(folder: Path, name: str, *words: str) -> None:
    """Run a command of `tal` as the run of a name, or continue it."""
    start = time.monotonic()
    words = (*words, f"run.dir={folder}", f"run.name={name}", "run.resume=auto")
    subprocess.run([sys.executable, "-m", "think_as_locals", "-q", *words], check=True)
    print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)


@contextmanager
def served(model: Path) -> Iterator[None]:
    """Serve a judge with vLLM's own OpenAI-compatible server."""
    words = ["--model", str(model), "--served-model-name", "teacher", "--port", str(PORT), "--dtype", "float32"]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words, "--enforce-eager"]
    process = subprocess.Popen([*command, "--max-model-len", "2048"], env={**os.environ, **SETTINGS})
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


def main(folder: Path) -> None:
    """Walk, and print the figures."""
    tal(folder, "teacher", "run", "quickstart", "eval.max_items=200")
    model = folder / "teacher" / "model"
    teacher = ["teacher=server", f"teacher.url={URL}/v1", "teacher.model=teacher", "teacher.key_variable=null"]
    teacher += ["teacher.prompt=compact", "teacher.max_completion_length=72"]
    if not (folder / "shown" / "demonstrations.jsonl").is_file():
        with served(model):
            tal(folder, "shown", "demonstrate", *teacher, "data=quickstart_cards", "tries=3")
    demonstrations = f"sft.data={folder / 'shown' / 'demonstrations.jsonl'}"
    tal(folder, "fresh", "run", "quickstart", demonstrations, "eval.max_items=200")
    judges = [
        word
        for name in ("teacher", "fresh")
        for word in (f"rms.{name}=judge", f"rms.{name}.path={folder / name}/model")
    ]
    task = ["sample=prompts", "sample.data=quickstart_cards", "sample.data.max_items=40", "sample.num_candidates=4"]
    policy = ["sample.policy=model", f"sample.policy.path={model}", "sample.max_completion_length=48"]
    scorer = ["sample.scorer=classifier", f"sample.scorer.path={model}", "sample.scorer.new_head_seed=0"]
    measured = ["data=quickstart_cards", "eval.items=test", "eval.max_items=200", "~rms.deberta", "~rms.tulu"]
    tal(folder, "valid", "run", "downstream", *task, *policy, *scorer, *judges, *measured)
    shown = json.loads((folder / "shown" / "yield.json").read_text())
    print(f"demonstrated: {100 * shown['yield']:.1f} % of {shown['n']} items, {shown['ci95']}")
    for name in ("teacher", "fresh"):
        for path in sorted((folder / name / "carb").glob("step-*.json"), key=lambda path: int(path.stem[5:])):
            found = json.loads(path.read_text())
            print(f"{name} {path.stem}: {100 * found['accuracy']:.1f} %, n {found['n']}, {found['ci95']}")
    valid = json.loads((folder / "valid" / "validity.json").read_text())
    print(f"r2 {valid['pearson']['r2']:.3f} over {valid['n']} reward models: {valid['results']}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/walk"))
