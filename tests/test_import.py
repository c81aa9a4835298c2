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
print(json.dumps([time.process_time(), sorted(sys.modules)]))
"""


def test_core_imports_within_half_a_second_without_gpu_stack() -> None:
    for _ in range(3):  # a busy machine adds what is not the import's
        done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
        spent, modules = json.loads(done.stdout)
        if spent < 0.5:
            break
    assert spent < 0.5
    assert not {*modules} & {*HEAVY}


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
