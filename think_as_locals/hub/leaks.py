"""Scan files for what must not be published: keys, and paths of this machine.

A file is read as people and programs read it: its text in UTF-8, UTF-16 or UTF-32, with escapes of JSON, YAML, URLs
and HTML decoded, and what it holds in base64. Forms of keys are those of detect-secrets (those that name a service,
not its guesses by entropy), and of services that it does not know.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator
from html import unescape
from pathlib import Path
from urllib.parse import unquote

from detect_secrets.plugins.aws import AWSKeyDetector
from detect_secrets.plugins.azure_storage_key import AzureStorageKeyDetector
from detect_secrets.plugins.discord import DiscordBotTokenDetector
from detect_secrets.plugins.github_token import GitHubTokenDetector
from detect_secrets.plugins.gitlab_token import GitLabTokenDetector
from detect_secrets.plugins.jwt import JwtTokenDetector
from detect_secrets.plugins.npm import NpmDetector
from detect_secrets.plugins.openai import OpenAIDetector
from detect_secrets.plugins.pypi_token import PypiTokenDetector
from detect_secrets.plugins.sendgrid import SendGridDetector
from detect_secrets.plugins.slack import SlackDetector
from detect_secrets.plugins.square_oauth import SquareOAuthDetector
from detect_secrets.plugins.stripe import StripeDetector
from detect_secrets.plugins.telegram_token import TelegramBotTokenDetector
from detect_secrets.plugins.twilio import TwilioKeyDetector
from huggingface_hub import get_token

from think_as_locals.hub.files import HubFile
from think_as_locals.hub.source_run import TrainedRun
from think_as_locals.types import ThinkAsLocalsError

_DETECTORS = (
    *(AWSKeyDetector, AzureStorageKeyDetector, DiscordBotTokenDetector, GitHubTokenDetector, GitLabTokenDetector),
    *(JwtTokenDetector, NpmDetector, OpenAIDetector, PypiTokenDetector, SendGridDetector, SlackDetector),
    *(SquareOAuthDetector, StripeDetector, TelegramBotTokenDetector, TwilioKeyDetector),
)
_START = r"(?<![A-Za-z0-9])"  # where a key may begin
_SECRETS = {
    "a Hugging Face token": r"(?:hf|api_org)_[A-Za-z0-9]{30,}",
    "a Weights & Biases key": r"(?i:wandb)[^\n]{0,40}?\b[0-9a-f]{40}\b|wandb_v1_\w{20,}",
    "an API key": _START + r"(?:sk-|glpat-|xox[abeprs]-)[\w-]{20,}"
    r"|(?:gh[pousr]_\w|github_pat_\w|npm_[A-Za-z0-9])\w{30,}"
    r"|" + _START + r"(?:A[KS]IA[0-9A-Z]{16}|AIza[\w-]{35})(?![A-Za-z0-9])"
    r"|" + _START + r"(?:gsk_|r8_|rk_live_|sk_live_|sk_test_|rk_test_|pplx-|xai-|nvapi-)[A-Za-z0-9_-]{24,}"
    r"|(?i:secret_?access_?key)[\s\"'\\:=]{1,8}[A-Za-z0-9/+]{40}"
    r"|(?i:account_?key)[\s\"'\\:=]{1,8}[A-Za-z0-9/+]{86}==",
    "an authorization header": _START + r"(?i:bearer)\s+[\w.~+/=-]{16,}"
    r"|(?i:authorization)[\s\"'\\:=]{1,8}(?i:basic)\s+[\w+/=]{8,}",
    "a private key": r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----",
    "a URL with a password": r"://[^\s/:@\"]{1,100}:[^\s/@\"]{1,100}@",
}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|\r?\n[ \t]*|(.))", re.DOTALL)
_MEANT = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "0": "\0"}
_NESTED = 3  # escapes of escapes: JSON in a text of JSON
_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_BLOB = re.compile("[A-Za-z0-9+/_-]{24,}")
_FOLDED = re.compile(r"(?<=[A-Za-z0-9+/]{40})\r?\n[ \t]*(?=[A-Za-z0-9+/])")  # a line of base64 goes on in the next
_SECRET_VARIABLE = re.compile(r"(?:TOKEN|KEY|SECRET|PASS|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_SHORTEST_KEY, _LONGEST_WORD = 8, 15  # shorter values, such as EMPTY, and plain words: every vocabulary has them


class LeakError(ThinkAsLocalsError, ValueError):
    """A file holds something that must not be published; the message names the file and the kind, never the value."""


def check_leaks(files: Iterable[HubFile], run: TrainedRun) -> None:
    """Raise `LeakError` if a file holds a secret or a path of this machine."""
    known = [(f"a secret ({each.secret_type})", regex) for each in _DETECTORS for regex in each().denylist]
    own = [(kind, re.compile(pattern)) for kind, pattern in (*_SECRETS.items(), *_of_this_machine(run))]
    found: dict[str, None] = {}
    for file in files:
        texts = list(readings(file.path.encode() + b"\n" + file.text()))
        found |= {
            f"{file.path}: {kind}": None
            for kind, pattern in (*own, *known)
            if any(pattern.search(text) for text in texts)
        }
    if found:
        raise LeakError(f"nothing was uploaded, remove these first (values are not shown): {'; '.join(found)}")


def readings(content: bytes) -> Iterator[str]:
    """Yield the texts that a file's bytes may be read as."""
    plain = [content.decode(errors="surrogateescape")]
    if b"\0" in content:
        forms = ("utf-16-le", "utf-16-be")
        plain += [content[start:].decode(form, errors="ignore") for form in forms for start in (0, 1)]
        plain.append(content.replace(b"\0", b"").decode(errors="surrogateescape"))  # UTF-32
    for text in plain:
        yield text
        decoded = _unescaped(text)
        # A tokenizer writes a space as one of these.
        decoded = decoded.replace("\u0120", " ").replace("\u2581", " ")
        if decoded != text:
            yield decoded
        if "%" in decoded:
            yield unquote(decoded, errors="surrogateescape")
        if "&" in decoded:
            yield unescape(decoded)
        yield "\n".join(_from_base64(decoded))


def _unescaped(text: str) -> str:
    """Decode the escapes of JSON and of YAML's quoted texts; what is escaped twice as well."""
    for _ in range(_NESTED):
        if "\\" not in text:
            break
        text = _ESCAPE.sub(_meaning, text)
    if _HALVES.search(text):  # as JSON escapes characters beyond the first plane
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def _meaning(escape: re.Match[str]) -> str:
    number = escape[1] or escape[2] or escape[3]
    if number:
        return chr(min(int(number, 16), 0x10FFFF))
    character = escape[4] or ""  # nothing: a folded line
    return _MEANT.get(character, character)


def _from_base64(text: str) -> Iterator[str]:
    """Yield what is text in base64 of any alphabet, in one line or several, whatever word stands before it."""
    for blob in _BLOB.finditer(_FOLDED.sub("", text)):
        digits = blob[0].replace("-", "+").replace("_", "/")
        for start in range(4):
            whole = len(digits) - (len(digits) - start) % 4
            decoded = base64.b64decode(digits[start:whole] + (digits[whole:] + "==" if len(digits) - whole > 1 else ""))
            yield decoded.replace(b"\0", b"").decode(errors="ignore")  # without zeros UTF-16 reads as ASCII


def _of_this_machine(run: TrainedRun) -> Iterator[tuple[str, str]]:
    """Yield the secrets of this environment and login, the home directory and the paths of the run."""
    known = {f"the value of {name}": value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)}
    known["the token of this login"] = get_token() or ""
    for kind, value in known.items():
        if len(value) >= _SHORTEST_KEY and not (value.isalpha() and len(value) <= _LONGEST_WORD):
            yield kind, _as_decoded(value)
    if Path.home() != Path("/"):  # a vocabulary may hold `/root`, but no file in it
        yield "a path in the home directory", _as_decoded(f"{Path.home()}/") + r"[\w.\udc80-\udcff-]"
    data = (*run.config.sources.values(), *(data for result in run.results for data in result.sources))
    named = [Path(path).expanduser() for path in (run.config.model.path, *(each.path for each in data)) if path]
    folders = {run.folder.path, *(result.path.parents[1] for result in run.results)}
    absolute = {path for folder in folders for path in (folder.resolve(), folder.absolute())}
    absolute |= {path for path in named if path.is_absolute()}
    for path in sorted(map(str, absolute)):
        yield "a path of the run", _as_decoded(path) + r"(?![\w.-])"


def _as_decoded(value: str) -> str:
    """Return a pattern for a value as it is, and as its backslashes are read as escapes."""
    return f"(?:{'|'.join(map(re.escape, sorted({value, _unescaped(value)})))})"
