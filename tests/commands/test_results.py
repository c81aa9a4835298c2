"""`tal leaderboard` and `tal validity` where there is nowhere to write to."""

from __future__ import annotations

from pathlib import Path

import pytest

from think_as_locals.cli import main


@pytest.mark.parametrize("command", ["leaderboard", "validity"])
@pytest.mark.parametrize("out", ["file", "file/below"])
def test_where_results_cannot_go_is_said_before_any_are_computed(
    command: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"name": "{i}", "accuracy": 0.{i}, "downstream": {i}}}\n' for i in range(1, 4)))
    monkeypatch.setattr("sys.argv", ["tal", command, str(rows), "--out", str(tmp_path / out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"--out {tmp_path / out}: no folder that can be written to" in capsys.readouterr().err
