"""Prints what this package and the kit need on a GPU machine that has the packages of THERE, as NAME==VERSION."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TARGET = {
    "python_version": "3.12",
    "python_full_version": "3.12.3",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
}
ROOT = Requirement("think-as-locals[train,serve,deepspeed]")
KIT = ("filelock", "psutil", "pytest")


def requirements(needed: Requirement) -> Iterable[Requirement]:
    """What a package requires on the target, with the extras that are asked for."""
    for text in metadata.requires(needed.name) or []:
        found = Requirement(text)
        if found.marker is None or any(found.marker.evaluate({**TARGET, "extra": e}) for e in ("", *needed.extras)):
            yield found


def closure(roots: Iterable[Requirement], there: set[str]) -> set[str]:
    """Names of all that these require, themselves included, without what is there."""
    known: set[tuple[str, frozenset[str]]] = set()
    left = list(roots)
    while left:
        needed = left.pop()
        key = str(canonicalize_name(needed.name)), frozenset(needed.extras)
        if key[0] not in there and key not in known:
            known.add(key)
            left += requirements(needed)
    return {name for name, _ in known}


if __name__ == "__main__":
    there = set(os.environ["THERE"].split())
    names = closure([ROOT, *map(Requirement, KIT)], there) - {ROOT.name}
    print(*(f"{name}=={metadata.version(name)}" for name in sorted(names)), sep="\n")
