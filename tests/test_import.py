"""Import cost of the core: prompt and parser load without the GPU stack."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "trl", "accelerate", "vllm", "datasets", "scipy", "pyarrow")

PROGRAM = """
import json, sys, time
import think_as_locals, think_as_locals.judging, think_as_locals.data, think_as_locals.types
spent = time.process_time()
{then}
print(json.dumps([spent, sorted(name for name in sys.modules if "." not in name)]))
"""


def run(then: str = "") -> tuple[float, set[str]]:
    """CPU seconds of a fresh process until the core is imported, and the modules it has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{then}", then)], check=True, capture_output=True, text=True
    )
    spent, modules = json.loads(done.stdout)
    return spent, set(modules)


def test_core_imports_within_half_a_second_without_gpu_stack() -> None:
    for _ in range(3):  # a busy machine adds what is not the import's
        spent, modules = run()
        if spent < 0.5:
            break
    assert spent < 0.5
    assert not modules & set(HEAVY)


def test_core_renders_parses_and_scores_without_gpu_stack() -> None:
    then = """
import think_as_locals as tal
item = tal.Item(id="1", prompt="?", responses=("x", "y"), best=0, culture="TH", language="en", domain="value",
                group="g", source="mine")
assert tal.render(item)
assert tal.score(tal.parse("", num_responses=2), item).parts["correctness"] == -1
from types import SimpleNamespace
from think_as_locals.data import load
load(SimpleNamespace(source="culture_cards", path=None, split="group", test_share=0.2, validation_share=None,
                     languages=["en"], groups=["hot_drink", "egg_dish", "table_taboo"],
                     num_responses=4, sets_per_group=1, max_groups=None, countries=None, min_share_gap=None,
                     as_pairs=False, max_items=None, hide_place=False, culture=None, language=None, domain=None,
                     faulty_rows="skip"))
"""
    assert not run(then)[1] & set(HEAVY)


def test_cli_help_imports_neither_torch_nor_pydantic() -> None:
    program = "import sys; sys.argv = ['tal', '--help']; from think_as_locals.cli import main\n"
    program += "try: main()\nexcept SystemExit: print('\\n' + ' '.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert not set(done.stderr.split()) & {*HEAVY, "pydantic", "hydra", "rich"}
    by_module = subprocess.run([sys.executable, "-m", "think_as_locals", "--help"], check=True, capture_output=True)
    assert by_module.stdout.decode() == done.stdout


def test_public_names_are_exported() -> None:
    import think_as_locals as tal

    names = {"Item", "render", "parse", "score", "shuffle_responses", "load_recipe", "RewardBreakdown", "Rubric"}
    assert {*names, "Judgement"} <= set(tal.__all__)
    assert all(getattr(tal, name) is not None for name in names)


def test_unknown_public_name_error_lists_known_names() -> None:
    import think_as_locals as tal

    with pytest.raises(AttributeError, match=r"'Jugde'.*load_recipe"):
        _ = tal.Jugde
