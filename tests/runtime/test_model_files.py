"""Damaged model folders: every loader names the folder, what is wrong, and a remedy."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Tal
from reward_models.tiny import ITEMS, write_classifier, write_language_model

from think_as_locals import Judge, ScalarRM
from think_as_locals.data.sources import jsonl
from think_as_locals.reward_models.implicit import ImplicitRM
from think_as_locals.runtime.model_files import reading_model
from think_as_locals.types import ModelError

WEIGHTS, INDEX, SHARD = "model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors"


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


def cut(name: str) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return damage


def config(**fields: object) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        values = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(json.dumps({name: v for name, v in values.items() if v is not None}))

    return damage


def sharded(index: object) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / SHARD)
        (folder / INDEX).write_text(json.dumps(index))

    return damage


def without_files(*names: str) -> Callable[[Path], object]:
    return lambda folder: [(folder / name).unlink() for name in names]


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "config cut": (cut("config.json"), "config.json' is not a valid JSON file"),
    "no kind": (config(model_type=None), "Should have a `model_type` key in its config.json"),
    "unknown kind": (config(model_type="qwen99"), "has model type `qwen99` but Transformers does not recognize"),
    "a word as width": (config(hidden_size="wide"), "'hidden_size' expected int, got str (value: 'wide')"),
    "another width": (config(hidden_size=48), "its weights have other shapes than config.json describes"),
    "tokenizer cut": (cut("tokenizer.json"), "JSONDecodeError"),
    "no tokenizer": (without_files("tokenizer.json"), "Couldn't instantiate the backend tokenizer"),
    "chat template cut": (text("chat_template.jinja", "{% for"), "its chat template cannot render a conversation"),
    "weights cut": (cut(WEIGHTS), "bytes that are no whole file of safetensors"),
    "weights empty": (text(WEIGHTS, ""), f"{WEIGHTS}: 0 bytes that are no whole file of safetensors"),
    "no weights": (without_files(WEIGHTS), "has no weights, expected model.safetensors: "),
    "a shard is missing": (sharded({"metadata": {}, "weight_map": {"w": "other.safetensors"}}), "other.safetensors"),
}
"""What is done to a folder, and what the message says of it."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_language_model(folder / "judge", 0)
    (folder / "judge" / "tal_judge.json").write_text(json.dumps({"max_completion_length": 8, "dtype": "float32"}))
    write_classifier(folder / "rm")
    jsonl.write(ITEMS, folder / "items.jsonl")
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_model_error_names_the_fault_and_a_remedy(models: Path, tmp_path: Path, damage: str) -> None:
    spoil, expected = DAMAGES[damage]
    judge, rm = (Path(shutil.copytree(models / name, tmp_path / name)) for name in ("judge", "rm"))
    for folder in (judge, rm):
        spoil(folder)
    uses: list[tuple[Path, Callable[[str], object]]] = [
        (judge, lambda path: Judge.load(path)),
        (rm, lambda path: ScalarRM.load(path).score(ITEMS[:1])),
        (judge, lambda path: ImplicitRM.load(path, None).score(ITEMS[:1])),
    ]
    for folder, use in uses:
        with pytest.raises(ModelError) as error:
            use(str(folder))
        assert expected in str(error.value)
        assert str(folder) in str(error.value)
        assert "again" in str(error.value)


RUN = ["data.groups=[gift_taboo]", "data.sets_per_group=12", "eval.max_items=4", "grpo.max_completion_length=16"]
COMMANDS = {
    "judge": ["judge", "JUDGE", "ITEMS"],
    "judge by scores": ["judge", "RM", "ITEMS"],
    "serve": ["serve", "JUDGE", "port=0"],
    "doctor": ["doctor", "--model", "JUDGE"],
    "train": ["run", "quickstart", "trainer=grpo", "model.scratch=null", "model.path=JUDGE", *RUN],
    "dry run": ["run", "quickstart", "--dry-run", "trainer=grpo", "model.scratch=null", "model.path=JUDGE", *RUN],
    "evaluate": ["run", "carb", "rms.j=judge", "rms.j.path=JUDGE", "data=jsonl", "data.path=ITEMS"],
    "evaluate scores": ["run", "carb", "rms.j=classifier", "rms.j.path=RM", "data=jsonl", "data.path=ITEMS"],
    "steer": ["run", "scpo_quickstart", "model.scratch=null", "model.path=RM", "global_rm=none"],
    "demonstrate": ["demonstrate", "teacher.path=JUDGE", "teacher.prompt=compact", "data=jsonl", "data.path=ITEMS"],
}


@pytest.mark.parametrize("damage", ["no kind", "weights cut", "empty"])
def test_commands_report_a_damaged_model_without_traceback(
    models: Path, tmp_path: Path, damage: str, tal: Tal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: pytest.fail("the server started"))
    paths = {"JUDGE": str(tmp_path / "judge"), "RM": str(tmp_path / "rm"), "ITEMS": str(models / "items.jsonl")}
    for name in ("judge", "rm"):
        if damage == "empty":
            (tmp_path / name).mkdir()
        else:
            DAMAGES[damage][0](Path(shutil.copytree(models / name, tmp_path / name)))
    expected = "is a directory without config.json" if damage == "empty" else DAMAGES[damage][1]
    for command, words in COMMANDS.items():
        for short, path in paths.items():
            words = [word.replace(short, path) for word in words]
        if command not in ("judge", "judge by scores", "serve", "doctor"):
            words += [f"run.dir={tmp_path / 'runs'}", f"run.name={command.replace(' ', '-')}"]
        done = tal(*words)
        message = " ".join((done.out + done.err).split())
        assert expected in message, command
        # A dry run lists what the machine lacks, and an evaluation goes on with other reward models.
        assert done.status in ((0, 2) if command == "dry run" else (1, 2)), command


def test_vllm_load_failure_raises_model_error(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: object) -> None:
        raise RuntimeError("Engine core initialization failed. See root cause above.")

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=fails))
    monkeypatch.setattr("think_as_locals.engines.vllm_engine.prepare", lambda: None)
    with pytest.raises(
        ModelError, match=r"judge: vLLM cannot load it, for the reason that it wrote above: Engine core"
    ):
        Judge.load(str(models / "judge"), "vllm")


def test_errors_unrelated_to_a_model_pass_through_unchanged(models: Path) -> None:
    def from_pretrained(error: Exception) -> None:
        raise error

    for error in (MemoryError(), PermissionError(13, "Permission denied", "config.json")):
        with pytest.raises(type(error)), reading_model(str(models / "judge")):
            from_pretrained(error)
    with pytest.raises(KeyError), reading_model(str(models / "judge")):
        raise KeyError("no frame of a library")
