"""The standing attack in short: `make attack` makes a million cases. Each oracle sees a fault that is planted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fastapi import FastAPI

from think_as_locals.types import Judgement

SMALL = {"completions": 5_000, "tokens": 200, "secrets": 100, "rows": 1_000, "requests": 200, "recipes": 12}


@pytest.fixture(scope="module")
def attack() -> ModuleType:
    spec = spec_from_file_location("attack", Path(__file__).parent / "benchmarks" / "attack.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases(attack: ModuleType, part: str, number: int) -> dict[str, Any]:
    return attack.attack(part, number / attack.PARTS[part][0], seed=1)


@pytest.mark.parametrize("part", SMALL)
def test_nothing_gets_through(attack: ModuleType, part: str) -> None:
    assert cases(attack, part, SMALL[part]) == {"tried": SMALL[part], "through": 0, "examples": []}


def parses_anything(parse: Callable[..., Judgement]) -> Callable[..., Judgement]:
    return lambda text, n, reason: replace(parse(text, n, reason), verdict=0 if "<verdict>A<" in text else None)


def first_row_alone(row_outcomes: Any) -> Any:
    return lambda data: list(row_outcomes(data))[:1]


FAULTY: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "completions": ("parse", parses_anything),
    "tokens": ("neutralise", lambda _: lambda text, tokens: text),
    "secrets": ("readings", lambda _: lambda content: [content.decode(errors="replace")]),
    "rows": ("row_outcomes", first_row_alone),
    "recipes": ("ConfigError", lambda _: ZeroDivisionError),
}


@pytest.mark.parametrize("part", FAULTY)
def test_what_gets_through_is_seen(attack: ModuleType, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    name, plant = FAULTY[part]
    monkeypatch.setattr(attack, name, plant(getattr(attack, name)))
    found = cases(attack, part, SMALL[part])
    assert found["through"] > 0
    assert found["examples"]


def test_an_answer_of_another_shape_is_seen(attack: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("think_as_locals.serving.app.create_app", lambda *_: FastAPI())
    assert "404" in cases(attack, "requests", 30)["examples"][0]


def test_the_command_writes_its_figures_and_its_status(
    attack: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "attack.json"
    monkeypatch.setattr(sys, "argv", ["attack.py", "--parts", "secrets", "--share", "0.01", "--out", str(out)])
    for status, through in ((0, 0), (1, 20)):
        with pytest.raises(SystemExit) as ended:
            attack.main()
        assert ended.value.code == status
        assert json.loads(out.read_text()) == {
            "seed": 0,
            "share": 0.01,
            "secrets": json.loads(out.read_text())["secrets"],
        }
        assert f"tried        20   got through {through}" in capsys.readouterr().out
        monkeypatch.setattr(attack, "readings", lambda content: [])
