"""Runs Python as if only some extras of this package were installed, according to their requirements."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_PROGRAM = """
import gc, json, sys
from importlib import metadata

gc.disable()  # a quarter of the time of imports
allowed, modules = map(set, json.loads(sys.argv.pop(1)))
version = metadata.version

def of_installed(name):
    if name.lower().replace("_", "-") not in allowed:
        raise metadata.PackageNotFoundError(name)
    return version(name)

class Installed:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in modules else self.finder.find_spec(name, path, target)

metadata.version = of_installed
sys.meta_path[:] = map(Installed, sys.meta_path)
"""


def closure(*extras: str) -> set[str]:
    """The distributions that `pip install think-as-locals[...]` brings, by the metadata of those that are here."""
    found: set[tuple[str, str]] = set()
    left = [("think-as-locals", ""), *(("think-as-locals", extra) for extra in extras)]
    while left:
        if (at := left.pop()) not in found:
            found.add(at)
            left += _required(*at)
    return {name for name, _ in found}


def _required(name: str, extra: str) -> Iterator[tuple[str, str]]:
    if name == "think-as-locals":  # as it is to be, whatever an earlier installation here says
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        lines = [*project["dependencies"], *project["optional-dependencies"].get(extra, [])]
    else:
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # not needed on this machine, such as a GPU's
            return
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            required = canonicalize_name(requirement.name)
            yield required, ""
            yield from ((required, other) for other in requirement.extras)


_owners = cache(metadata.packages_distributions)  # it reads the files of all packages


def run_with(extras: tuple[str, ...], code: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a process that sees the standard library and what these extras bring."""
    allowed = closure(*extras)
    others = [
        module for module, names in _owners().items() if not {canonicalize_name(name) for name in names} & allowed
    ]
    state = json.dumps([sorted(allowed), others])
    command = [sys.executable, "-c", f"{_PROGRAM}\n{code}", state, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
