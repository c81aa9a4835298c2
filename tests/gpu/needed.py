"""Prints what a GPU machine with the packages of INSTALLED lacks, as NAME==VERSION.

python needed.py packages     what this package and the kit need
python needed.py vllm         what vLLM needs beside that, to train beside us, to serve and to judge
"""

from __future__ import annotations

import sys
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
KIT_PACKAGES = ("filelock", "psutil", "pytest")
INSTALLED = """
torch triton transformers accelerate peft pyarrow scipy scikit-learn rich
numpy pandas huggingface-hub hf-xet tokenizers safetensors regex pyyaml tqdm pygments psutil ninja setuptools
aiohttp aiohappyeyeballs aiosignal attrs frozenlist multidict propcache yarl
cloudpickle einops pillow prometheus-client py-cpuinfo sentencepiece tiktoken uvloop
"""
"""The second line is what the first brings along, of any size; the rest is what vLLM needs of it."""
VLLM = """
aiohttp blake3 cachetools cbor2 cloudpickle compressed-tensors depyf einops llguidance mistral-common
model-hosting-container-standards msgspec openai oss-harmony partial-json-parser pillow prometheus-client
prometheus-fastapi-instrumentator py-cpuinfo pybase64 python-json-logger pyzmq sentencepiece setproctitle tiktoken
uvloop watchfiles xgrammar
"""
"""What vLLM imports for this; it requires four times as much."""


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
    there = set(INSTALLED.split())
    names = closure([ROOT, *map(Requirement, KIT_PACKAGES)], there)
    if sys.argv[1] == "vllm":
        names = closure(map(Requirement, VLLM.split()), there | names)
    print(*(f"{name}=={metadata.version(name)}" for name in sorted(names - {ROOT.name})), sep="\n")
