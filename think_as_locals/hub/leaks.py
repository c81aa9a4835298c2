"""Scan files for what must not be published: keys, and paths of this machine.

The patterns of keys are those of detect-secrets that name a service (not its guesses by entropy), and of services that
it does not know.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from huggingface_hub import get_token

from think_as_locals.hub.files import HubFile
from think_as_locals.hub.source_run import TrainedRun
from think_as_locals.types import ThinkAsLocalsError

_SERVICES = (  # of detect-secrets
    *("AWS Access Key", "Azure Storage Account access key", "Basic Auth Credentials", "Discord Bot Token"),
    *("GitHub Token", "GitLab Token", "JSON Web Token", "NPM tokens", "OpenAI Token", "Private Key", "PyPI Token"),
    *("SendGrid API Key", "Slack Token", "Square OAuth Secret", "Stripe Access Key", "Telegram Bot Token"),
    "Twilio API Key",
)
_OTHERS = {
    "Hugging Face Token": r"(?:hf|api_org)_\w{30,}",
    "W&B Key": r"(?i:wandb)[^\n]{0,40}?\b[0-9a-f]{40}\b|wandb_v1_\w{20,}",
    "API Key": r"(?:gsk_|AIza|xai-|nvapi-|pplx-|r8_|github_pat_)[\w-]{30,}|sk-(?:proj|ant|or|svcacct)-[\w-]{20,}",
    "Authorization Header": r"(?i:bearer)\s+[\w.~+/=-]{16,}",
}
_SECRET_VARIABLE = re.compile(r"(?:TOKEN|KEY|SECRET|PASS|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_SHORTEST_KEY, _LONGEST_WORD = 8, 15  # shorter values and plain words are in every vocabulary


class LeakError(ThinkAsLocalsError, ValueError):
    """A file must not be published; the message names the file and the kind of content, never the value."""


def scan_for_leaks(files: Iterable[HubFile], run: TrainedRun) -> None:
    """Raise a `LeakError` if a file contains a secret or a path of this machine."""
    detectors: dict[str, Any] = get_mapping_from_secret_type_to_class()
    patterns = [(kind, regex) for kind in _SERVICES for regex in detectors[kind]().denylist]
    patterns += [(kind, re.compile(pattern)) for kind, pattern in (*_OTHERS.items(), *_local_secrets(run))]
    found: dict[str, None] = {}
    for file in files:
        text = f"{file.path}\n{file.text().decode(errors='replace')}"
        found |= {f"{file.path}: {kind}": None for kind, pattern in patterns if pattern.search(text)}
    if found:
        raise LeakError(f"nothing was uploaded, remove these first (values are not shown): {'; '.join(found)}")


def _local_secrets(run: TrainedRun) -> Iterator[tuple[str, str]]:
    """Yield the secrets of this environment and login, the home directory and the paths of the run."""
    known = {f"the value of {name}": value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)}
    known["the token of this login"] = get_token() or ""
    for kind, value in known.items():
        if len(value) >= _SHORTEST_KEY and not (value.isalpha() and len(value) <= _LONGEST_WORD):
            yield kind, _plain_or_in_json(value)
    if Path.home() != Path("/"):  # a vocabulary may have `/root`, but not a file in it
        yield "a path in the home directory", _plain_or_in_json(f"{Path.home()}/") + r"[\w.\\-]"
    data = (*run.config.data.sources.values(), *(data for result in run.results for data in result.sources))
    named = [Path(path).expanduser() for path in (run.config.model.path, *(each.path for each in data)) if path]
    folders = [run.folder.path, *(result.path.parents[1] for result in run.results)]
    absolute = {*(folder.resolve() for folder in folders), *(path for path in named if path.is_absolute())}
    for path in sorted(map(str, absolute)):
        yield "a path of the run", _plain_or_in_json(path) + r"(?![\w.-])"


def _plain_or_in_json(value: str) -> str:
    """Return a pattern for a value as it is, and as JSON has it."""
    forms = {value, *(json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))}
    return f"(?:{'|'.join(map(re.escape, sorted(forms)))})"
