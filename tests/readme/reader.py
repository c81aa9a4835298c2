"""A reader who types the README's commands in a folder with the files, runs and models that they mention."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ROOT, Tal
from data.sources.test_best_of_n import CARB
from data.sources.test_blend import BREAKFAST, a_folder
from data.sources.test_columns import PAIR
from data.sources.test_globalopinionqa import row as opinions_of_countries
from data.tables import write
from readme.parts import OWN_REWARDS, Command
from reward_models.tiny import ITEMS, write_classifier
from test_newcomer import write_items

from think_as_locals.data.sources import jsonl


@dataclass(frozen=True)
class Reader:
    """A folder, and what pytest lends."""

    folder: Path
    request: pytest.FixtureRequest
    monkeypatch: pytest.MonkeyPatch
    run: Tal

    def words(self, command: Command, *, optional: bool = False) -> list[str]:
        """What to type, with all that it names in its place."""
        for name, put in _PLACEHOLDERS.items():
            if re.search(rf"(?<![\w/])(?<!out=){re.escape(name)}(?!\w)", command.text):
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                put(self, self.folder / name, command.text)
        return [re.sub(r"\bFILE\b", _FILE, word) for word in command.words(optional=optional)]

    def tal(self, *words: str) -> tuple[int, str]:
        """Exit status and output of `tal`."""
        done = self.run(*words)
        return done.status, done.out + done.err

    def types(self, command: Command, *more: str, optional: bool = False) -> str:
        """Type a command of `tal` that ends well; its output."""
        status, output = self.tal(*self.words(command, optional=optional)[1:], *more)
        assert status == 0, output
        return output

    def copy(self, path: Path, fixture: str) -> None:
        """Put what a fixture made into a folder of its own."""
        shutil.copytree(self.request.getfixturevalue(fixture), path)


def _started(reader: Reader, path: Path, _: str) -> None:
    """What `tal init` makes."""
    assert reader.run("init", "made").status == 0
    for made in (path.with_name("made")).iterdir():
        made.replace(path.with_name(made.name))


def _first_run(reader: Reader, path: Path, _: str) -> None:
    """A run of its recipe, which measures `own` as well."""
    reader.copy(path, "small_run")
    for step, measured in (("0", "0"), ("2", "30")):
        for suffix in (".json", ".parquet"):
            (path / "eval" / "own").mkdir(parents=True, exist_ok=True)
            shutil.copy(path / f"carb/step-{step}{suffix}", path / f"eval/own/step-{measured}{suffix}")


def _rows(_: Reader, path: Path, text: str) -> None:
    """Rows of the source that a command reads."""
    path = path.with_name(_FILE)
    if "data=jsonl" in text:
        write_items(path, times=12)
    elif "data=rows" in text:
        write(path, [{"prompt": f"{PAIR['prompt']} {i}", "chosen": "a", "rejected": "b"} for i in range(20)])
    elif "globalopinionqa" in text:
        write(path, [opinions_of_countries()])
    elif "carb.yaml" in text:
        languages = ("Arabic", "Chinese", "Japanese", "English")
        write(path, [{**CARB, "id": f"{CARB['id']}-{language}", "language": language} for language in languages])
    else:
        write(path, [CARB])


def _blend(_: Reader, path: Path, __: str) -> None:
    """BLEnD's files, with questions enough to fill a batch."""
    meals = ["breakfast", "lunch", "tea", "dinner"]
    a_folder(path, dict.fromkeys(meals, BREAKFAST))
    for file in (path / "annotations").iterdir():
        rows = json.loads(file.read_text(encoding="utf-8"))
        for meal, row in rows.items():
            row["en_question"] = row["en_question"].replace("breakfast", meal)
        file.write_text(json.dumps(rows), encoding="utf-8")


def _edits(_: Reader, path: Path, __: str) -> None:
    item = json.loads(jsonl.line(ITEMS[0]))
    write(path, [{"item": item, "probe": "RP", "prompt": f"Say: {item['prompt']}"}])


_FILE = "file.jsonl"
_PLACEHOLDERS: dict[str, Callable[[Reader, Path, str], object]] = {
    "recipes": lambda _, path, __: path.symlink_to(ROOT / "recipes"),
    "launch": lambda _, path, __: path.symlink_to(ROOT / "launch"),
    "RECIPE": lambda _, path, __: path.symlink_to(ROOT / "recipes" / "quickstart.yaml"),
    "DIR": _blend,
    "FILE": _rows,
    "items.jsonl": lambda _, path, __: jsonl.write(ITEMS, path),
    "mine.jsonl": lambda _, path, __: write_items(path, times=12),
    "my.csv": lambda _, path, __: write(path, [PAIR]),
    "judge.yaml": _started,
    "one_cpu.yaml": _started,
    "one_gpu.yaml": _started,
    "runs/first": _first_run,
    "own_rewards.py": lambda _, path, __: path.write_text(OWN_REWARDS, encoding="utf-8"),
    "OWNER/MODEL": lambda _, path, __: write_classifier(path),
    "owner/judge": lambda reader, path, _: path.symlink_to(reader.request.getfixturevalue("small_run") / "model"),
    "runs/NAME": lambda reader, path, text: reader.copy(
        path, "steered_run" if "push" in text and "--model" in text else "small_run"
    ),
    "runs/edited/edits.jsonl": _edits,
    "runs/A": lambda reader, path, _: reader.copy(path, "small_run"),
    "runs/B": lambda reader, path, _: reader.copy(path, "small_run"),
    "runs/ANOTHER": lambda reader, path, _: reader.copy(path, "evaluation"),
    "runs/EVALUATION": lambda reader, path, _: reader.copy(path, "evaluation"),
}
