"""Scan files for what must not be published: keys, and paths of this machine.

A file is read as people and programs read it: its text in UTF-8, UTF-16 or UTF-32, with escapes of JSON, YAML, C,
URLs, HTML and mail decoded, without what cannot be seen, and what it holds in base64, hexadecimal or decimal numbers,
in one another too. Forms of keys are those of detect-secrets (those that name a service,
not its guesses by entropy), and of services that it does not know.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable, Iterator
from html import unescape
from pathlib import Path
from unicodedata import normalize
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
    r"|"
    + _START
    + r"(?:fw_|tgp_v1_|csk-|jina_|tvly-|ya29\.|dapi|dop_v1_|hf_oauth_|hf_jwt_|whsec_|dckr_pat_|figd_|glsa_|hvs\."
    r"|ntn_|lin_api_|shpat_)[A-Za-z0-9]{24,}"
    r"|(?i:secret_?access_?key)[\s\"'\\:=]{1,8}[A-Za-z0-9/+]{40}"
    r"|(?i:account_?key)[\s\"'\\:=]{1,8}[A-Za-z0-9/+]{86}==",
    "a value called a key, token, secret or password": r"(?:(?i:(?:api|access|auth|session|refresh)[_-]?(?:key|token)"
    r"|secret|password)|[A-Z]_(?:TOKEN|KEY))[\s\"'\\]{0,4}[:=][\s\"'\\]{0,4}"
    r"(?=[\w./+~=-]{0,200}\d)(?=[\w./+~=-]{0,200}[A-Za-z])[\w./+~=-]{20,}",
    "an authorization header": _START + r"(?i:bearer)\s+[\w.~+/=-]{16,}"
    r"|(?i:authorization)[\s\"'\\:=]{1,8}(?i:basic)\s+[\w+/=]{8,}",
    "a private key": r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----",
    "a URL with a password": r"://[^\s/:@\"]{1,100}:[^\s/@\"]{1,100}@",
}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|([0-7]{3})|\r?\n[ \t]*|([^xuU1-7]))")
_QUOTED = re.compile(r"=(?:([0-9A-F]{2})|\r?\n)")
_MEANT = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "0": "\0"}
_NESTED = 3  # escapes of escapes, digits of digits: JSON in a text of JSON
_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_BLOB = re.compile("[A-Za-z0-9+/_-]{24,}")
_FOLDED = re.compile(r"(?<=[A-Za-z0-9+/]{40})\r?\n[ \t]*(?=[A-Za-z0-9+/])")  # a line of base64 goes on in the next
_HEX = re.compile(r"(?:(?:0[xX])?[0-9a-fA-F]{2}[\s,:;_-]{0,4}){20,}+[0-9a-fA-F]?")
_NO_HEX = re.compile(r"0[xX]|[^0-9a-fA-F]")
_CODE = r"(?:1?\d\d|2[0-4]\d|25[0-5])(?!\d)"  # of a byte, in decimal
_NUMBERS = re.compile(rf"(?<!\d)(?:{_CODE}[\s,;]{{1,12}}){{19,}}+(?:{_CODE})?")
_BYTES = re.compile("[\u00c2-\u00f4][\u0080-\u00bf]{1,3}")  # of UTF-8, each read as a character
_ASCII = re.compile(r"[\t\n\r -~]{20,}")
_INVISIBLE = re.compile(  # what Unicode calls default-ignorable
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\U000e0000-\U000e0fff]"
)
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
        forms = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
        plain += [content[start:].decode(form, errors="ignore") for form in forms for start in range(4)]
    for text in plain:
        yield from _decoded(text, _NESTED)


def _decoded(text: str, levels: int) -> Iterator[str]:
    """Yield a text, what its escapes stand for, and the texts in the digits of bytes in it, up to some levels deep."""
    forms = _forms(text)
    yield from forms
    held = "\n".join({part for form in forms for part in _from_digits(form)})
    yield held
    # What is not random is text of some length, so no level is larger than the one before.
    inner = "\n".join(run[0] for run in _ASCII.finditer(_seen(held)))
    if inner and levels:
        yield from _decoded(inner, levels - 1)


def _forms(text: str) -> list[str]:
    """Return a text and what its escapes stand for, whichever of them were written first."""
    found = {text: None}
    for decoders in (_DECODERS, _DECODERS[::-1]):
        form = text
        for decode in decoders * _NESTED:
            form = decode(form)
            found[form] = None
    return list(found)


def _seen(text: str) -> str:
    """Return a text as it is seen: without characters that are not drawn, with plain letters for wide or styled ones.

    A tokenizer writes a space as one of two other characters.
    """
    text = text.replace("\u0120", " ").replace("\u2581", " ")
    if text.isascii():
        return text
    text = _BYTES.sub(lambda character: character[0].encode("latin-1").decode(errors="ignore"), text)
    return normalize("NFKC", _INVISIBLE.sub("", text))


def _unescaped(text: str) -> str:
    """Decode the escapes of JSON, YAML and C."""
    text = _ESCAPE.sub(_meaning, text)
    if _HALVES.search(text):  # as JSON escapes characters beyond the first plane
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def _meaning(escape: re.Match[str]) -> str:
    if number := escape[1] or escape[2] or escape[3]:
        return chr(min(int(number, 16), 0x10FFFF))
    if escape[4]:
        return chr(int(escape[4], 8))
    character = escape[5] or ""  # nothing: a folded line
    return _MEANT.get(character, character)


def _from_url(text: str) -> str:
    return unquote(text, errors="surrogateescape")


def _unquoted(text: str) -> str:
    """Decode the escapes of mail (quoted-printable)."""
    return _QUOTED.sub(lambda escape: chr(int(escape[1], 16)) if escape[1] else "", text)


def _from_digits(text: str) -> Iterator[str]:
    """Yield what is text in base64 of any alphabet, in one line or several, or in numbers, whatever stands before."""
    for blob in _BLOB.finditer(_FOLDED.sub("", text)):
        digits = blob[0].replace("-", "+").replace("_", "/")
        for start in range(4):
            whole = len(digits) - (len(digits) - start) % 4
            yield _as_text(
                base64.b64decode(digits[start:whole] + (digits[whole:] + "==" if len(digits) - whole > 1 else ""))
            )
    for blob in _HEX.finditer(text):
        digits = _NO_HEX.sub("", blob[0])
        for start in (0, 1):
            yield _as_text(bytes.fromhex(digits[start : len(digits) - (len(digits) - start) % 2]))
    for blob in _NUMBERS.finditer(text):
        yield "".join(chr(int(number)) for number in re.findall(r"\d+", blob[0]))


def _as_text(content: bytes) -> str:
    return content.replace(b"\0", b"").decode(errors="ignore")  # without zeros UTF-16 reads as ASCII


_DECODERS: tuple[Callable[[str], str], ...] = (_seen, _unescaped, _from_url, unescape, _unquoted)


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
    """Return a pattern for a value as it is, and as its escapes are read."""
    forms = {value, *(form for form in _forms(value) if len(form) >= _SHORTEST_KEY)}
    return f"(?:{'|'.join(map(re.escape, sorted(forms)))})"
