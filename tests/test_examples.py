"""Examples in docstrings."""

from __future__ import annotations

from doctest import DocTest, DocTestFinder, DocTestRunner
from importlib import import_module

import pytest
from conftest import ROOT

# Other modules are not imported for this: some load vLLM, in each process that runs tests.
MODULES = [path for path in sorted(ROOT.glob("think_as_locals/**/*.py")) if ">>> " in path.read_text(encoding="utf-8")]
NAMES = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES]
EXAMPLES = [example for name in NAMES for example in DocTestFinder().find(import_module(name)) if example.examples]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_docstring_example_passes(example: DocTest) -> None:
    assert DocTestRunner().run(example).failed == 0
