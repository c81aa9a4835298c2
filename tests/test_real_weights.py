"""The road with a really pretrained model, SmolLM2-135M: what toy models do not show. `make test` makes its folder."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from conftest import command, launch

from think_as_locals.config.checks import load_recipe
from think_as_locals.data import load, read
from think_as_locals.engines import Sampling
from think_as_locals.engines.engine import sample_all
from think_as_locals.engines.transformers_engine import TransformersEngine
from think_as_locals.evaluation import carb
from think_as_locals.reward_models.scalar import ScalarRM
from think_as_locals.run import plan, start
from think_as_locals.runtime.files import read_json
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import DataError, DataWarning

pytestmark = [pytest.mark.slow, pytest.mark.long]

MODEL = Path(sys.prefix) / "smollm2-135m"
LONG = "The quick brown fox jumps over the lazy dog. " * 150
CONVERSATIONS = [[{"role": "user", "content": f"{name}: {LONG} What jumps?"}] for name in ("One", "Two")]
SEEDED = Sampling(max_completion_length=6, temperature=1.0, seed=5)

VLLM = """
import json, sys
from test_real_weights import CONVERSATIONS, MODEL, SEEDED
from think_as_locals.engines.engine import sample_all
from think_as_locals.engines.vllm_engine import VLLMEngine

if __name__ == "__main__":
    engine = VLLMEngine.load(str(MODEL), dtype="bfloat16", template_kwargs={}, max_model_length=2048,
                             max_num_batched_tokens=2048)
    found = [[(each.text, each.prompt_tokens) for each in sample_all(engine, CONVERSATIONS, SEEDED)] for _ in range(2)]
    json.dump(found, open(sys.argv[1], "w"))
    engine.close()
"""


def test_transformers_repeats_what_it_sampled_with_a_seed() -> None:
    engine = TransformersEngine.load(str(MODEL), dtype="auto", template_kwargs={}, batch_size=4)
    assert str(engine.model.dtype) == "torch.float32"  # the fast type on a CPU
    first, again = (sample_all(engine, [[{"role": "user", "content": "What jumps?"}]], SEEDED) for _ in range(2))
    assert first == again
    assert first[0].text


def test_vllm_samples_with_a_seed_where_prompts_exceed_its_token_budget(tmp_path: Path, warm_vllm: str) -> None:
    """On a CPU it cannot prefill such a prompt in parts: its generators have no offset."""
    script = tmp_path / "sample.py"
    script.write_text(VLLM, encoding="utf-8")
    done = launch(warm_vllm, str(script), str(tmp_path / "found.json"), PYTHONPATH=str(Path(__file__).parent))
    assert done.returncode == 0, done.stderr
    first, again = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert first == again
    for text, prompt_tokens in first:
        assert text
        assert 1500 < prompt_tokens < 2000  # both exceed the budget, one does not


@pytest.fixture(scope="module")
def pretrained_run(tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> RunFolder:
    """A run of the recipe for a CPU that `tal init` writes, of a few steps."""
    folder = tmp_path_factory.mktemp("pretrained")
    with (folder / "my.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["ask", "good", "bad"])
        for number in range(8):
            rows.writerow([f"What is {number} and {number + 1} together?", str(2 * number + 1), "I do not know."])
    tal = command("tal", warm_python)
    columns = "data.columns={prompt: ask, chosen: good, rejected: bad}"
    done = launch(tal, "init", "mine", "--from", "my.csv", columns, cwd=folder)
    assert done.returncode == 0, done.stderr
    small = ["sft.max_steps=2", "sft.per_device_train_batch_size=2", "sft.gradient_accumulation_steps=1"]
    small += ["grpo.max_steps=1", "grpo.per_device_train_batch_size=4", "grpo.num_generations=4"]
    small += ["grpo.max_completion_length=12"]
    small += ["eval.max_items=1", "data.validation_share=null", "lora=rank16", f"model.path={MODEL}"]
    done = launch(tal, "run", "one_cpu.yaml", "run.name=first", *small, cwd=folder / "mine")
    assert done.returncode == 0, done.stderr
    assert "not shared" not in done.stderr  # TRL's own log-probabilities of the first group are the packed ones
    return RunFolder(folder / "mine" / "runs" / "first")


def test_one_cpu_recipe_trains_a_pretrained_model(pretrained_run: RunFolder) -> None:
    steps = [json.loads(line) for line in pretrained_run.metrics.read_text(encoding="utf-8").splitlines()]
    assert {each["stage"] for each in steps} == {"sft", "grpo"}
    assert carb.best_step(pretrained_run) is None or pretrained_run.model.is_dir()
    assert pretrained_run.report.is_file()


def test_adapter_and_merged_model_write_the_same(pretrained_run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pretrained_run.path.parent.parent)  # of the run: the adapter names its base from there
    config = load_recipe(pretrained_run.path.parent.parent / "one_cpu.yaml")
    (item, *_) = read(config.data, 0)
    engines = [
        TransformersEngine.load(str(path), dtype="float32", template_kwargs={}, batch_size=1)
        for path in (pretrained_run.adapter, pretrained_run.model)
    ]
    message = [[{"role": "user", "content": item.prompt}]]
    adapter, merged = (sample_all(engine, message, Sampling(max_completion_length=8)) for engine in engines)
    assert adapter == merged


def test_scalar_recipe_trains_a_head_on_pairs_without_a_culture(tmp_path: Path) -> None:
    """The Bradley-Terry baseline, judged on the test items of a judge of the same rows."""
    with (tmp_path / "my.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["prompt", "chosen", "rejected"])
        for number in range(40):
            rows.writerow([f"What is {number} and {number + 1} together?", str(2 * number + 1), "I do not know."])
    data = ["data=rows", f"data.path={tmp_path / 'my.csv'}"]
    small = ["global_rm.max_steps=6", "global_rm.batch_size=2", "global_rm.learning_rate=0.001", "scpo.max_length=64"]
    run = start("scalar", [*data, *small, f"model.path={MODEL}", f"run.dir={tmp_path}", "run.name=scalar"])
    (overall,) = (row["overall"] for row in read_json(run.steering)["means"])
    judged = load_recipe("recipes/pretrained.yaml", [*data, "eval.leaks=refuse"])
    test = load(judged.data, judged.seed).test
    assert (overall["n"], overall["accuracy"]) == (len(test), 1.0)
    rm = ScalarRM.load(str(run.global_rm.model))
    assert all(scores[item.best] > scores[1 - item.best] for item, scores in zip(test, rm.score(test), strict=True))


def test_scalar_recipe_names_test_items_that_are_training_items(tmp_path: Path) -> None:
    words = "What do people eat there in the morning before they go to work on day {} of the week, and who cooks {} it?"
    rows = [
        {"prompt": words.format(f"number {n} " * 9, extra), "chosen": f"Rice {n}.", "rejected": f"Bread {n}."}
        for n in range(20)
        for extra in ("", "all of")
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    overrides = ["data=rows", f"data.path={tmp_path / 'pairs.jsonl'}", f"model.path={MODEL}", f"run.dir={tmp_path}"]
    with pytest.warns(DataWarning, match="training items too"):
        plan("scalar", overrides)


def test_scalar_recipe_wants_pairs(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "responses": ["a", "b", "c"], "best": "A"} for n in range(9)]
    (tmp_path / "three.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    overrides = ["data=rows", f"data.path={tmp_path / 'three.jsonl'}", f"model.path={MODEL}", f"run.dir={tmp_path}"]
    with pytest.raises(DataError, match=r"has 3 responses, expected pairs: data\.as_pairs=true"):
        start("scalar", overrides)
