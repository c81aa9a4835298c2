"""The notebook runs from the first cell to the last, with a training run of a few seconds."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from conftest import ROOT, SMALL
from nbclient import NotebookClient

PATH = ROOT / "recipes" / "first_judge.ipynb"
SETTINGS = 'settings = ["run.name=first"]'


@pytest.mark.slow
@pytest.mark.long
def test_the_notebook_runs(tmp_path: Path, warm_python: str) -> None:
    notebook = nbformat.read(PATH, as_version=4)
    assert not any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")  # stored without outputs
    (settings,) = (cell for cell in notebook.cells if cell.source == SETTINGS)
    small = [word for word in SMALL if not word.startswith("data.")]
    small.append("model.scratch.num_phrases=4096")  # the grammar is learnt in the few steps of SMALL
    settings.source += f"\nsettings += {small}"
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.create_kernel_manager().kernel_spec.argv[0] = warm_python
    client.execute()
    *_, accuracy, judged = ("".join(map(str, cell.get("outputs", ""))) for cell in notebook.cells if "outputs" in cell)
    assert "step-0" in accuracy
    assert "</verdict>" in judged
    assert (tmp_path / "mine" / "runs" / "first" / "report.html").is_file()
