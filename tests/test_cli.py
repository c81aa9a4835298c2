"""The command line of somebody who mistypes, or has not installed the extra that a command needs."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import ROOT

from think_as_locals.cli import main

CORE_ONLY = """
import sys
from importlib import metadata
from think_as_locals.cli import main

core = {"babel", "hydra-core", "omegaconf", "pydantic", "rich", "packaging", "PyYAML", "think-as-locals"}
version = metadata.version

def only_core(name):
    if name not in core:
        raise metadata.PackageNotFoundError(name)
    return version(name)

class Missing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {gone}:
            raise ModuleNotFoundError(f"No module named {top!r}", name=name)

metadata.version = only_core
sys.meta_path.insert(0, Missing())
main()
"""
"""`tal` as it is without any extra."""

GONE = {"torch", "transformers", "huggingface_hub", "numpy", "pyarrow", "httpx", "psutil", "fastapi", "accelerate"}


def without_extras(*words: str) -> subprocess.CompletedProcess[str]:
    program = CORE_ONLY.replace("{gone}", repr(GONE))
    return subprocess.run(
        [sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "words",
    [
        ("judge", "runs/NAME/model", "--prompt", "?", "--response", "a", "--response", "b"),
        ("compare", "runs/a", "runs/b"),
        ("push", "runs/NAME", "--repo", "OWNER/NAME", "--dry-run"),
        ("run", "-m", "recipes/quickstart.yaml", "seed=1,2"),
    ],
)
def test_a_command_without_its_extra_says_what_to_install(words: tuple[str, ...]) -> None:
    done = without_extras(*words)
    assert done.returncode == 2
    assert "pip install 'think-as-locals[train]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_doctor_works_without_extras_for_it_is_there_to_name_them() -> None:
    done = without_extras("doctor", "recipes/quickstart.yaml")
    assert done.returncode == 1, done.stderr
    assert "package torch" in done.stdout.replace("\n", " ")


def test_a_module_that_no_extra_brings_is_our_fault_and_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_spec("nobodys_module") is None
    monkeypatch.setattr("think_as_locals.commands.results._compare", lambda _: __import__("nobodys_module"))
    monkeypatch.setattr(sys, "argv", ["tal", "compare", "a", "b"])
    with pytest.raises(ModuleNotFoundError, match="nobodys_module"):
        main()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "COMMAND"),
        (["run"], "required: recipe\n"),
        (["run", "quickstart"], "did you mean 'recipes/quickstart.yaml'?"),
        (["compare", "{tmp}/a", "{tmp}/b"], "no such file; expected the folder of a run, or a carb/NAME.parquet"),
    ],
)
def test_what_is_mistyped_is_said(
    words: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["tal", *(word.format(tmp=tmp_path) for word in words)])
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr()
    assert expected in shown.out + shown.err
