"""A training run writes everything needed to use, reproduce and understand it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
import yaml
from conftest import QUICK, SMALL, TRACKED, Tal
from items import make_item
from rich.console import Console

from think_as_locals import train
from think_as_locals.config.checks import load_recipe
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.data import load, read
from think_as_locals.data.load import load_training_data
from think_as_locals.data.sources import jsonl
from think_as_locals.evaluation import carb
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.evaluation.report import FROM_SCRATCH
from think_as_locals.judging import render
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.training_items import count_trained_on, item_hash, read_training_items
from think_as_locals.run import start
from think_as_locals.runtime.files import write_rows
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.training.cold_start import ColdStartTrainer, demonstrate
from think_as_locals.training.grpo import load_chat
from think_as_locals.types import ConfigError, DataError, Demonstration, Item, RunStoppedError, TooLongError

pytestmark = pytest.mark.slow


def test_run_writes_config_environment_metrics_and_checkpoints(small_run: Path) -> None:
    config = RunConfig.model_validate(yaml.safe_load((small_run / "config.yaml").read_text()))
    assert config.grpo.max_steps == 2
    environment = json.loads((small_run / "environment.json").read_text())
    assert environment["packages"]["trl"].startswith("1.16.")
    lines = [json.loads(line) for line in (small_run / "metrics.jsonl").read_text().splitlines()]
    assert {line["stage"] for line in lines} == {"sft", "grpo"}
    grpo = [line for line in lines if line["stage"] == "grpo" and "reward" in line]
    assert [line["step"] for line in grpo] == [1, 2]
    assert {"rewards/correctness/mean", "rewards/structure/mean", "parse_failure", "eval/test/accuracy"} <= set(
        grpo[-1]
    )
    assert [line["step"] for line in lines if "eval/test/accuracy" in line] == [0, 1, 2]
    assert [path.name for path in (small_run / "checkpoints").glob("*-*")] == ["step-1"]  # the last step's is the model
    assert (small_run / "checkpoints" / "step-1" / "model.safetensors").is_file()
    for name in ("tal_judge.json", "training_items.txt"):  # a checkpoint may be the better judge
        assert (small_run / "checkpoints" / "step-1" / name).read_bytes() == (small_run / "model" / name).read_bytes()


def test_saved_judges_record_training_items_and_repeat_their_completions(small_run: Path) -> None:
    config = RunConfig.model_validate(yaml.safe_load((small_run / "config.yaml").read_text()))
    splits = load(config.data, config.seed)
    for model in ("model", "cold_start/model"):
        hashes = read_training_items(str(small_run / model))
        assert hashes == {item_hash(item) for item in splits.train}
        assert count_trained_on(splits.test, hashes) == {"items": 0, "n": len(splits.test)}
    rows = parquet.read_table(small_run / "carb" / "step-2.parquet").to_pylist()
    asked = ("id", "prompt", "best", "culture", "language", "domain", "group")
    items = [make_item(responses=tuple(row["responses"]), **{name: row[name] for name in asked}) for row in rows]
    judgements = Judge.load(str(small_run / "model")).judge(items)
    assert [judgement.completion for judgement in judgements] == [row["completion"] for row in rows]


def test_carb_is_measured_at_every_evaluation_step(small_run: Path) -> None:
    for step in (0, 1, 2):
        summary = json.loads((small_run / "carb" / f"step-{step}.json").read_text())
        table = parquet.read_table(small_run / "carb" / f"step-{step}.parquet").to_pylist()
        assert summary["step"] == step
        assert summary["n"] == len(table) == 16
        assert summary["accuracy"] == pytest.approx(sum(row["correct"] for row in table) / 16)
        assert {"chance", "longest", "shortest", "label_match", "tfidf"} < set(summary["baselines"])
        assert summary["split"] == "pairing"
        assert summary["trained_on"] == {"items": 0, "n": 16}


def test_completion_rows_contain_reward_and_breakdown(small_run: Path) -> None:
    rows = [
        row for path in sorted((small_run / "completions").iterdir()) for row in parquet.read_table(path).to_pylist()
    ]
    assert len(rows) == 2 * 16
    for row in rows:
        assert row["reward"] == pytest.approx(row["reward/correctness"] + 0.2 * row["reward/structure"])
        assert row["reward/correctness"] == (1.0 if row["label"] == row["best_label"] else -1.0)


def test_cold_start_model_is_freed_before_grpo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[weakref.ref[torch.nn.Module]] = []

    def make(*args: Any) -> ColdStartTrainer:
        trainer = ColdStartTrainer(*args)
        models.append(weakref.ref(trainer.model))
        return trainer

    def begin(*_: Any) -> None:
        assert [model() for model in models] == [None]

    monkeypatch.setattr(train, "ColdStartTrainer", make)
    monkeypatch.setattr(train, "grpo", begin)
    monkeypatch.setattr(train, "write_report", lambda folder: folder)
    start("recipes/quickstart.yaml", ["sft.max_steps=1", f"run.dir={tmp_path}", "run.name=small"])
    assert len(models) == 1


def test_cold_start_and_grpo_train_on_the_same_shuffled_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, list[Item]] = {}

    def make(config: Any, sft: Any, model: str, demonstrations: Sequence[Demonstration], *_: Any) -> None:
        given["cold start"] = [each.item for each in demonstrations]
        raise RuntimeError("made")

    monkeypatch.setattr(train, "ColdStartTrainer", make)
    words = ["data.shuffle_labels=true", "sft.max_steps=50", f"run.dir={tmp_path}", "run.name=small"]
    with pytest.raises(RuntimeError, match="made"):
        start("recipes/quickstart.yaml", words)
    monkeypatch.setattr(train, "cold_start", lambda *_: None)
    monkeypatch.setattr(train, "grpo", lambda config, model, data, *_: given.update(grpo=data.train))
    monkeypatch.setattr(train, "write_report", lambda folder: folder)
    start("recipes/quickstart.yaml", [*words, "run.resume=auto"])
    assert set(given["cold start"]) <= set(given["grpo"])
    config = load_recipe("recipes/quickstart.yaml", words)
    right = {item.id: item.best for item in load_training_data(config, BREAKDOWNS["cell"]).train}
    assert {item.id for item in given["grpo"]} == {*right}
    assert fmean(item.best == right[item.id] for item in given["grpo"]) == pytest.approx(0.25, abs=0.06)


def test_run_on_a_data_mix_evaluates_every_named_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.jsonl"
    asked = [(f"What does the number {i} stand for?", (f"luck {i}", f"wealth {i}")) for i in range(12)]
    own = {"origins": ("TH", "US"), "domain": "numbers"}
    jsonl.write(
        (make_item(id=f"m{i}", group=f"g{i}", prompt=p, responses=r, **own) for i, (p, r) in enumerate(asked)), mine
    )
    mix = ["data=mix", "data.weights={cards: 3, mine: 1}"]
    mix += ["data.mix.cards=quickstart_cards", "data.mix.cards.sets_per_group=6", "data.mix.cards.validation_share=0.1"]
    mix += ["data.mix.mine=jsonl", f"data.mix.mine.path={mine}"]
    sets = ["eval.sets.unseen=culture_cards", "eval.sets.unseen.data.groups=[egg_dish,work_custom]"]
    sets += ["eval.sets.unseen.protocol=round_robin", "eval.sets.own=jsonl", f"eval.sets.own.data.path={mine}"]
    sets += ["eval.sets.own.items=test"]
    small = [override for override in [*SMALL, *QUICK] if not override.startswith("data.")]
    names = [f"run.dir={tmp_path}", "run.name=mixed", "grpo.max_steps=1"]
    start("recipes/quickstart.yaml", [*small, *mix, *sets, *names])
    run = RunFolder(tmp_path / "mixed")
    assert run.evaluated_sets() == ["test", "cards", "mine", "own", "unseen", "validation"]
    summaries = {name: carb.read(run.evaluation(name, 1)) for name in run.evaluated_sets()}
    assert {name: (found["dataset"], found["n"]) for name, found in summaries.items()} == {
        "test": ("cards + mine", 4 + 2),
        "cards": ("culture_cards", 4),
        "mine": (mine.name, 2),
        "own": (mine.name, 2),
        "unseen": ("culture_cards", 4),
        "validation": ("cards + mine", 4 + 1),
    }
    assert summaries["unseen"]["protocol"] == "round_robin, greedy, one order for each item"
    # A part of the mix is judged once, as part of its test items.
    both = [
        parquet.read_table(run.evaluation(name, 1).with_suffix(".parquet")).to_pylist() for name in ("test", "mine")
    ]
    assert [row for row in both[0] if row["id"].startswith("m")] == both[1]
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    last = next(line for line in lines if "reward" in line)
    assert {f"eval/{name}/accuracy" for name in summaries} < set(last)
    assert sum(value for key, value in last.items() if re.fullmatch("source/(cards|mine)/share", key)) == 1
    out = capsys.readouterr().out
    assert "CARB" not in out
    assert re.findall(r"^(\w+): [\d.]+% \[.*\] on n=\d+, in format", out, re.MULTILINE) == run.evaluated_sets()
    page = run.report.read_text()
    assert all(f">{name}</th>" in page for name in summaries)


def test_too_long_eval_items_end_the_run_or_count_as_wrong(tmp_path: Path) -> None:
    asked = [make_item(id=f"m{i}", group=f"g{i}", prompt=f"What is {i}? " + "tea " * 4_000 * (i < 2)) for i in range(4)]
    jsonl.write(asked, tmp_path / "mine.jsonl")
    words = [*SMALL, *QUICK, f"run.dir={tmp_path}", "run.name=long", "grpo.max_steps=1"]
    words += ["eval.sets.mine=jsonl", f"eval.sets.mine.data.path={tmp_path / 'mine.jsonl'}"]
    with pytest.raises(TooLongError, match=r"2 of 4 items are too long, .*: 'm0', 'm1'\. a prompt of \d+ tokens"):
        start("recipes/quickstart.yaml", words)
    run = RunFolder(tmp_path / "long")
    assert not run.evaluation("mine", 0).exists()
    start("recipes/quickstart.yaml", [*words, "run.resume=auto", "eval.too_long=wrong"])
    found = [carb.read(run.evaluation("mine", step)) for step in (0, 1)]
    assert [(each["n"], each["too_long"]) for each in found] == [(4, {"exclude": [], "wrong": ["m0", "m1"]})] * 2


def test_plan_counts_the_judgements_that_an_evaluation_asks_for() -> None:
    four = ["data=quickstart_cards", "data.groups=[idiom_heavy_rain]", "data.sets_per_group=12"]
    each_with_each = [f"eval.sets.all.{word}" for word in four if not word.startswith("data=")]
    words = ["eval.sets.all=quickstart_cards", *each_with_each, "eval.sets.all.protocol=round_robin"]
    words += ["eval.sets.all.orders=2", "eval.leaks=report", "eval.max_items=8"]
    words += ["data=mix", "data.mix.a=quickstart_cards", "data.mix.b=culture_cards", "data.mix.b.num_responses=4"]
    config = load_recipe("recipes/quickstart.yaml", words)
    data = load_training_data(config, BREAKDOWNS["cell"])
    (text,) = (text for name, text in train.plan(config, data) if name == "evaluations")
    own = {item for name, each in data.sets.items() if name != "all" for item in each.items}
    assert f" of {len(own) + 8 * 6 * 2} judgements each" in text


def test_over_long_training_prompts_are_dropped_from_both_stages(tmp_path: Path, tal: Tal) -> None:
    recipe, limit = "recipes/quickstart.yaml", 40
    words = [*SMALL, *QUICK, f"data.max_prompt_tokens={limit}", "reward.both_orders=true", f"run.dir={tmp_path}"]
    done = tal("run", recipe, *words, "run.name=short")
    assert done.status == 0, done.err
    config, run = load_recipe(recipe, words), tmp_path / "short"
    chat, items = load_chat(config, str(run / "model")), load_training_data(config, BREAKDOWNS["cell"]).train
    prompts = {
        item.id: [render(item, "compact", config.seed, chat.special_tokens, reverse) for reverse in (False, True)]
        for item in items
    }
    short = {name for name, orders in prompts.items() if max(map(len, chat.encode(orders))) <= limit}
    assert 0 < len(short) < len(items)
    message = f"left out of training: {len(items) - len(short)} of {len(items)} items, whose prompts have more than"
    assert " ".join(done.err.split()).count(message) == 2  # the cold start's and GRPO's
    trained = {row["id"] for path in run.glob("completions/*.parquet") for row in parquet.read_table(path).to_pylist()}
    assert trained
    assert trained <= short
    with pytest.raises(DataError, match=r"data\.max_prompt_tokens: leaves no training item; the shortest prompt has "):
        start(recipe, [*words, "run.name=none", "data.max_prompt_tokens=9"])
    with pytest.raises(ConfigError, match=rf"expected at most the number of training items, {len(short)}:"):
        start(recipe, [*words, "run.name=few", f"grpo.per_device_train_batch_size={8 * len(items)}"])


def test_demonstrations_of_a_file_are_shuffled_by_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_recipe("recipes/quickstart.yaml", ["sft.biased_share=0.0"])
    made = list(demonstrate(load(config.data, config.seed).train[:20], None, config.sft, 0))  # type: ignore[arg-type]
    rows = [{"item": asdict(each.item), "order": each.order, "completion": each.completion} for each in made]
    write_rows(tmp_path / "shown.jsonl", rows)
    shown = list[Demonstration]()

    def trainer(config: Any, sft: Any, model: Any, demonstrations: list[Demonstration], checkpoints: Any) -> None:
        shown.extend(demonstrations)
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "ColdStartTrainer", trainer)
    words = [f"sft.data={tmp_path / 'shown.jsonl'}", f"run.dir={tmp_path}", "run.name=shown", *QUICK]
    with pytest.raises(RunStoppedError):
        start("recipes/quickstart.yaml", words)
    assert shown != made
    assert set(shown) == set(made)
    for one, other in zip(shown[::2], shown[1::2], strict=True):  # in both orders
        assert (one.item, one.order) == (other.item, other.order[::-1])


def test_over_long_items_whose_origins_other_rows_tell_are_not_demonstrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = load_recipe("recipes/quickstart.yaml", ["data.groups=[idiom_heavy_rain]", "data.sets_per_group=12"]).data
    items = [replace(item, origins=()) for item in read(cards)]
    long = "".join(f"{number}. " for number in range(900))
    items = [replace(i, prompt=long + i.prompt) if n % 3 == 0 else i for n, i in enumerate(items)]
    jsonl.write(items, tmp_path / "mine.jsonl")
    shown = list[Demonstration]()

    def trainer(config: Any, sft: Any, model: Any, demonstrations: list[Demonstration], checkpoints: Any) -> None:
        shown.extend(demonstrations)
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "ColdStartTrainer", trainer)
    words = ["data=jsonl", f"data.path={tmp_path / 'mine.jsonl'}", "data.max_prompt_tokens=400", *SMALL[2:], *QUICK]
    with pytest.raises(RunStoppedError):
        start("recipes/quickstart.yaml", [*words, "data.split=pairing", f"run.dir={tmp_path}", "run.name=short"])
    assert any(each.item.origins for each in shown)
    assert not any(each.item.prompt.startswith(long) for each in shown)


def test_prompt_token_limit_applies_per_source_of_a_mix(small_run: Path, tmp_path: Path) -> None:
    theirs = load_recipe("recipes/quickstart.yaml", ["data.groups=[idiom_heavy_rain]", "data.sets_per_group=12"])
    jsonl.write(read(theirs.data), tmp_path / "mine.jsonl")
    cards = ["groups=[gift_taboo]", "sets_per_group=12", "test_share=0.25", "max_prompt_tokens=9"]
    words = ["data=mix", "data.mix.cards=quickstart_cards", "data.mix.mine=jsonl"]
    words += [f"data.mix.cards.{word}" for word in cards]
    words += [f"data.mix.mine.path={tmp_path / 'mine.jsonl'}", "data.mix.mine.split=pairing"]
    words += ["data.mix.mine.test_share=0.25", "data.mix.mine.validation_share=null"]
    config = load_recipe("recipes/quickstart.yaml", words)
    data = load_training_data(config, BREAKDOWNS["cell"])
    left_out = train.over_long(config, str(small_run / "model"), data, Console())
    limited = {item for item, name in zip(data.train, data.sources, strict=True) if name == "cards"}
    assert left_out == limited != set(data.train)


def test_weights_of_a_mix_hold_among_the_items_that_are_short_enough(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = load_recipe("recipes/quickstart.yaml", ["data.groups=[idiom_heavy_rain]", "data.sets_per_group=12"]).data
    long = "".join(f"{number}. " for number in range(900))
    items = [replace(i, prompt=long + i.prompt) if n % 3 else i for n, i in enumerate(read(cards))]
    jsonl.write(items, tmp_path / "mine.jsonl")
    found = dict[str, Counter[str]]()

    def cold_start(config: Any, sft: Any, model: Any, demonstrations: list[Demonstration], checkpoints: Any) -> None:
        found["sft"] = Counter(each.item.group for each in demonstrations)
        raise KeyboardInterrupt

    def trainer(*_: Any, sources: list[str]) -> None:
        found["grpo"] = Counter(sources)
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "ColdStartTrainer", cold_start)
    monkeypatch.setattr(train, "JudgeTrainer", trainer)
    words = ["data=mix", "data.mix.cards=quickstart_cards", "data.mix.cards.groups=[gift_taboo]", "data.mix.mine=jsonl"]
    words += [f"data.mix.mine.path={tmp_path / 'mine.jsonl'}", "data.mix.mine.max_prompt_tokens=400"]
    words += [f"data.mix.{name}.split=pairing" for name in ("cards", "mine")] + ["data.weights={cards: 1, mine: 1}"]
    pretrained = ["model.scratch=null", f"model.path={small_run / 'model'}", "trainer=demonstrated_grpo"]
    for name, more in (("sft", pretrained), ("grpo", [*pretrained, "sft=null"])):
        with pytest.raises(RunStoppedError):
            start("recipes/quickstart.yaml", [*QUICK, *words, *more, f"run.dir={tmp_path}", f"run.name={name}"])
        assert len(found[name]) == 2
        assert len(set(found[name].values())) == 1, found


@pytest.mark.parametrize(
    ("words", "context", "remedy"),
    [
        ([], "2,048 tokens", r"\(1,976 leaves room for whole completions\), or lower grpo.max_completion_length$"),
        (["rollout=vllm", "rollout.max_model_length=1024"], "1,024 tokens", "or raise rollout.max_model_length$"),
        (["rollout=vllm", "rollout.max_model_length=2048"], "2,048 tokens", "for whole completions\\)$"),
        (["rollout=vllm", "grpo.max_completion_length=2048"], "2,048 tokens", "to leave them out$"),
    ],
)
def test_training_prompt_beyond_the_context_ends_a_run_before_it_trains(
    small_run: Path, words: list[str], context: str, remedy: str
) -> None:
    """Otherwise vLLM, or a model with absolute positions, ends it at the step that needs the prompt."""
    config = load_recipe("recipes/quickstart.yaml", [*SMALL, *words])
    data = load_training_data(config, BREAKDOWNS["cell"])
    *fitting, last = data.train
    model, console = str(small_run / "model"), Console()
    assert not train.over_long(config, model, data, console)
    if "rollout=vllm" not in words:
        longer = load_recipe("recipes/quickstart.yaml", [*SMALL, "grpo.max_completion_length=2047"])
        with pytest.raises(DataError, match="leave no room for a completion, 2,047 tokens, in 2,048 tokens"):
            train.over_long(longer, model, data, console)
    long = replace(last, responses=("bow " * 2500, *last.responses[1:]))
    message = rf"1 of {len(data.train)} training items have prompts that leave no room .* in {context}, such as "
    with pytest.raises(DataError, match=rf"{message}'{long.id}' with [\d,]+: set data.max_prompt_tokens .*{remedy}"):
        train.over_long(config, model, replace(data, train=(*fitting, long)), console)
    limited = load_recipe("recipes/quickstart.yaml", [*SMALL, *words, "data.max_prompt_tokens=500"])
    assert train.over_long(limited, model, replace(data, train=(*fitting, long)), console) == {long}


def test_resume_keeps_finished_run_and_rejects_changed_seed(
    small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "small"
    shutil.copytree(small_run, copy)
    best = RunFolder(copy).evaluation("validation", 1)
    best.write_text(json.dumps(json.loads(best.read_text()) | {"accuracy": 1.0}))
    overrides = [*TRACKED, f"run.dir={tmp_path}", "run.name=small", "run.resume=auto"]
    before = (copy / "metrics.jsonl").read_bytes()
    (copy / "report.html").unlink()
    start("recipes/quickstart.yaml", overrides)
    assert (copy / "report.html").is_file()
    assert f"better      {copy}/checkpoints/step-1, on validation items" in capsys.readouterr().out.replace("\n", "")
    assert (copy / "checkpoints" / "step-1").is_dir()
    assert (copy / "metrics.jsonl").read_bytes() == before  # what is done is not done again
    with pytest.raises(ConfigError, match="started with another seed"):
        start("recipes/quickstart.yaml", [*overrides, "seed=7"])


def test_next_commands_printed_by_a_run_work(
    small_run: Path, tal: Tal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, _, commands = (small_run.parent / "output.txt").read_text().partition("\nNext:\n")
    assert FROM_SCRATCH in " ".join(told.split())
    lines = [shlex.split(line, comments=True) for line in commands.splitlines() if line.startswith("  tal ")]
    assert [line[1] for line in lines] == ["judge", "compare", "init", "serve"]
    monkeypatch.chdir(tmp_path)
    served: list[Any] = []
    monkeypatch.setattr("think_as_locals.serving.app.serve", served.append)
    for _, *words in lines:
        done = tal(*words)
        assert done.status == 0 or "No verdict" in done.out, done.err
    judged = tal(*lines[0][1:], "--json")
    assert len(judged.out.splitlines()) == 3
    assert served
    assert (tmp_path / "mine" / "README.md").is_file()
