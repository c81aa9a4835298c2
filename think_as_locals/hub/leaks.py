"""What must not leave this machine: keys, and where things lie on it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from huggingface_hub import get_token

from think_as_locals.hub.contents import HubFile
from think_as_locals.hub.trained import TrainedRun
from think_as_locals.types import ThinkAsLocalsError

_START = rb"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4}))"
"""Where a key may begin: not within a word, but right after what JSON writes a line's end as."""
_SECRETS = {
    "a Hugging Face token": rb"(?:hf|api_org)_[A-Za-z0-9]{30,}",
    "a Weights & Biases key": rb"(?i:wandb)[^\n]{0,40}?\b[0-9a-f]{40}\b|wandb_v1_\w{20,}",
    "an API key": _START + rb"(?:sk-|glpat-|xox[abeprs]-)[\w-]{20,}"
    rb"|(?:gh[pousr]_\w|github_pat_\w|npm_[A-Za-z0-9])\w{30,}"
    rb"|" + _START + rb"(?:A[KS]IA[0-9A-Z]{16}|AIza[\w-]{35})(?![A-Za-z0-9])"
    rb"|(?i:secret_?access_?key)[\s\"'\\:=]{1,8}[A-Za-z0-9/+]{40}",
    "an authorization header": _START + rb"(?i:bearer)\s+[\w.~+/=-]{16,}"
    rb"|(?i:authorization)[\s\"'\\:=]{1,8}(?i:basic)\s+[\w+/=]{8,}",
    "a private key": rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----",
    "a URL with a password": rb"://[^\s/:@\"]{1,100}:[^\s/@\"]{1,100}@",
}
_VARIABLE = re.compile(r"(?:TOKEN|KEY|SECRET|PASS|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
"""Names of environment variables that hold secrets."""
_SHORTEST_KEY, _LONGEST_WORD = 8, 15
"""Shorter values, such as EMPTY, and plain words are no secrets and stand in every vocabulary."""


class LeakError(ThinkAsLocalsError, ValueError):
    """A file holds what must not be published: the message names file and kind, never the value."""


def check(files: Iterable[HubFile], run: TrainedRun) -> None:
    """See that no file holds a secret, or a path of this machine.

    Raises:
        LeakError: one does; the message names each such file.
    """
    patterns = [(kind, re.compile(pattern)) for kind, pattern in (*_SECRETS.items(), *_values(), *_places(run))]
    found = [
        f"{file.path}: {kind}"
        for file in files
        for text in [file.path.encode() + b"\n" + file.text()]
        for kind, pattern in patterns
        if pattern.search(text)
    ]
    if found:
        raise LeakError(
            f"nothing was uploaded, take these out first (values are not shown): {'; '.join(dict.fromkeys(found))}"
        )


def _values() -> Iterator[tuple[str, bytes]]:
    """The secrets of this environment and login themselves, whatever they look like."""
    known = {f"the value of {name}": value for name, value in os.environ.items() if _VARIABLE.search(name)}
    known["the token of this login"] = get_token() or ""
    for kind, value in known.items():
        if len(value) >= _SHORTEST_KEY and not (value.isalpha() and len(value) <= _LONGEST_WORD):
            yield kind, _anyhow(value)


def _places(run: TrainedRun) -> Iterator[tuple[str, bytes]]:
    """Where things lie on this machine; a vocabulary may well hold `/root`, but no file in it."""
    if Path.home() != Path("/"):
        yield "a path in the home directory", _anyhow(f"{Path.home()}/") + rb"(?:[\w.\x80-\xff-]|\\u)"
    data = (run.config.data, *(measurement.data for measurement in run.measurements))
    named = [Path(path).expanduser() for path in (run.config.model.path, *(each.path for each in data)) if path]
    folders = {run.folder, *(measurement.path.parents[1] for measurement in run.measurements)}
    absolute = {place for folder in folders for place in (folder.resolve(), folder.absolute())}
    absolute |= {path for path in named if path.is_absolute()}
    for path in sorted(map(str, absolute)):
        yield "a path of the run", _anyhow(path) + rb"(?![\w.-])"


def _anyhow(value: str) -> bytes:
    """A pattern for a value as it is, and as it stands in JSON."""
    forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return b"(?:" + b"|".join(re.escape(os.fsencode(form)) for form in sorted(forms)) + b")"
