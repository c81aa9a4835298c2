"""A short run of the fuzzing attack (`make attack` tries a million inputs); every oracle detects a planted fault."""

from __future__ import annotations

import json
import re
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

CASE_COUNTS = {"completions": 5_000, "tokens": 200, "rows": 1_000, "requests": 200}


@pytest.fixture(scope="module")
def attack() -> ModuleType:
    spec = spec_from_file_location("attack", Path(__file__).parent / "benchmarks" / "attack.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_attack(attack: ModuleType, part: str, number: int) -> dict[str, Any]:
    return attack.attack(part, number / attack.PARTS[part][0], seed=1)


@pytest.mark.parametrize("part", CASE_COUNTS)
def test_attack_finds_no_violations(attack: ModuleType, part: str) -> None:
    assert run_attack(attack, part, CASE_COUNTS[part]) == {"tried": CASE_COUNTS[part], "through": 0, "examples": []}


def accept_any_verdict_a(parse: Callable[..., Judgement]) -> Callable[..., Judgement]:
    return lambda text, n, reason: replace(parse(text, n, reason), verdict=0 if "<verdict>A<" in text else None)


def first_row_only(row_outcomes: Any) -> Any:
    return lambda data: list(row_outcomes(data))[:1]


PLANTED_FAULTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "completions": ("parse", accept_any_verdict_a),
    "tokens": ("neutralise", lambda _: lambda text, tokens: text),
    "rows": ("row_outcomes", first_row_only),
}


@pytest.mark.parametrize("part", PLANTED_FAULTS)
def test_attack_detects_planted_fault(attack: ModuleType, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    name, plant = PLANTED_FAULTS[part]
    monkeypatch.setattr(attack, name, plant(getattr(attack, name)))
    found = run_attack(attack, part, CASE_COUNTS[part])
    assert found["through"] > 0
    assert found["examples"]


def test_attack_detects_missing_server_routes(attack: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("think_as_locals.serving.app.create_app", lambda *_: FastAPI())
    assert "404" in run_attack(attack, "requests", 30)["examples"][0]


def test_attack_command_writes_results_and_fails_on_violations(
    attack: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "attack.json"
    monkeypatch.setattr(sys, "argv", ["attack.py", "--parts", "tokens", "--share", "0.0025", "--out", str(out)])
    for status, through in ((0, "0"), (1, r"[1-9]\d*")):
        with pytest.raises(SystemExit) as ended:
            attack.main()
        assert ended.value.code == status
        assert json.loads(out.read_text()).keys() == {"seed", "share", "tokens"}
        assert re.search(rf"tried +20 +got through {through}\n", capsys.readouterr().out)
        monkeypatch.setattr(attack, "neutralise", lambda text, tokens: text)
