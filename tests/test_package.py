"""Wheel installation: recipes, defaults, prompts and cards are found, and extras bring what they need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path
from shutil import copyfile, copytree

import pytest
from conftest import ROOT
from extras import closure, run_with
from items import make_item
from reward_models.scripted import serving
from reward_models.tiny import write_classifier

import think_as_locals
from think_as_locals.data.sources import jsonl

pytestmark = pytest.mark.slow

CODE = """
import think_as_locals, pathlib
from think_as_locals.config.compose import ASSETS, recipes
from think_as_locals.config.checks import load_recipe
from think_as_locals.data import read
from think_as_locals.judging import render
assert pathlib.Path(think_as_locals.__file__).is_relative_to(pathlib.Path().resolve()), think_as_locals.__file__
assert [path.name for path in recipes()] == {recipes}
assert sorted(path.name for path in (ASSETS / "launch").iterdir()) == {launch}
assert pathlib.Path(think_as_locals.__file__).with_name("py.typed").is_file()
item = read(load_recipe("recipes/quickstart.yaml").data)[0]
assert item.prompt in render(item)[-1]["content"]
"""


def test_wheel_contains_recipes_launch_files_and_data(tmp_path: Path) -> None:
    # Of a folder, pip makes a wheel and installs that. Here it is the one that the image is made from.
    image = [line.split() for line in (ROOT / "launch" / "Dockerfile").read_text().splitlines()]
    for name in [name for words in image if words[:1] == ["COPY"] for name in words[1:-1]]:
        copy = copytree if (ROOT / name).is_dir() else copyfile
        (tmp_path / "image").mkdir(exist_ok=True)
        copy(ROOT / name, tmp_path / "image" / name)
    ((asked,),) = [re.findall(r"\[(.*)\]", words[-1]) for words in image if words[:3] == ["RUN", "pip", "install"]]
    assert {*asked.split(",")} <= {*metadata("think-as-locals").get_all("Provides-Extra")}
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run(
        [*pip, "--no-deps", "--no-compile", "--target", str(tmp_path / "site"), str(tmp_path / "image")], check=True
    )
    patterns = {"recipes": "*.yaml", "launch": "*"}
    names = {folder: sorted(path.name for path in (ROOT / folder).glob(each)) for folder, each in patterns.items()}
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(**names)],
        cwd=tmp_path / "site",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_api_pages_have_every_public_name(warm_python: str) -> None:
    words = ["make", "--old-file", ".venv/.dev", "docs", f"BIN={Path(warm_python).parent}"]
    subprocess.run(words, cwd=ROOT, check=True)
    page = (ROOT / "runs" / "docs" / "think_as_locals.html").read_text(encoding="utf-8")
    assert [name for name in think_as_locals.__all__ if f'id="{name}"' not in page] == []


TAL = "from think_as_locals.cli import main; main()"


def test_core_without_extras_renders_parses_scores_and_validates(tmp_path: Path) -> None:
    assert not {"torch", "transformers", "openai", "jinja2"} & closure()
    jsonl.write([make_item()], tmp_path / "rows.jsonl")
    done = run_with((), TAL, "data", "validate", "rows.jsonl", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "read as data=jsonl\n1 rows = 1 imported (1 items) + 0 in quarantine\n"
    code = (
        "import think_as_locals as tal\n"
        "item = tal.Item(id='1', prompt='?', responses=('a', 'b'), best=0, culture='TH', language='en', domain='d', "
        "group='g', source='s')\n"
        "print(len(tal.render(item)), tal.score(tal.parse('no', 2), item).parts['correctness'])\n"
        "from think_as_locals.data import load\n"
        "assert load(tal.load_recipe('quickstart').data).train\n"
        "tal.Judge\n"
    )
    done = run_with((), code, folder=tmp_path)
    assert done.stdout == "2 -1.0\n"
    assert "pip install 'think-as-locals[train]', or [client] for a judge behind a server" in done.stderr


def test_client_extra_queries_a_server_without_torch(tmp_path: Path) -> None:
    assert not {"torch", "transformers"} & closure("client")
    code = (
        "import sys, think_as_locals as tal\n"
        "judge = tal.Judge.load('a-judge', base_url=sys.argv[1], prompt='compact')\n"
        "print(judge.judge(prompt='?', responses=['a', 'the longest'], culture='TH').verdict)\n"
    )
    with serving() as (url, _):
        done = run_with(("client",), code, url, folder=tmp_path)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


@pytest.mark.parametrize(
    ("extras", "code"),
    [
        (("train", "serve"), "import think_as_locals.serving.app"),
        (("train", "sweep"), "import think_as_locals.sweeps.sweep, hydra_plugins.hydra_joblib_launcher"),
        (
            ("inspect",),
            "import think_as_locals.integrations.inspect_tasks as tasks; assert tasks.carb(max_items=2).dataset",
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_extra_provides_all_imports(extras: tuple[str, ...], code: str, tmp_path: Path) -> None:
    done = run_with(extras, code, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_train_extra_alone_provides_imports_and_scores_with_a_model(tmp_path: Path) -> None:
    code = f"import think_as_locals.train, think_as_locals.evaluate, think_as_locals.steer\n{TAL}"
    words = ["--prompt", "Rice?", "--response", "rice", "--response", "bread soup", "--culture", "TH", "--json"]
    done = run_with(("train",), code, "judge", write_classifier(tmp_path / "rm"), *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"scores": [' in done.stdout
