"""Scan files for what must not be published: keys, and paths of this machine.

Each file is read in every form that may hold a key: as UTF-8, UTF-16 or UTF-32, without invisible characters, with
escapes of JSON, YAML, C, URLs, HTML and mail decoded, and with base64, hexadecimal and decimal numbers decoded, also
nested. The patterns of keys are those of detect-secrets that name a service (not its guesses by entropy), and of
services that it does not know.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any
from unicodedata import normalize
from urllib.parse import unquote

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from huggingface_hub import get_token

from think_as_locals.hub.files import HubFile
from think_as_locals.hub.source_run import TrainedRun
from think_as_locals.types import ThinkAsLocalsError

_SERVICES = {  # of detect-secrets
    *("AWS Access Key", "Azure Storage Account access key", "Discord Bot Token", "GitHub Token", "GitLab Token"),
    *("JSON Web Token", "NPM tokens", "OpenAI Token", "PyPI Token", "SendGrid API Key", "Slack Token"),
    *("Square OAuth Secret", "Stripe Access Key", "Telegram Bot Token", "Twilio API Key"),
}
_START, _END = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"  # before a key and behind it
_PREFIXED = {  # what follows the prefixes of keys
    r"[\w-]{20,}": ("sk-", "glpat-", "xoxa-", "xoxb-", "xoxe-", "xoxp-", "xoxr-", "xoxs-"),
    r"[0-9A-Z]{16}" + _END: ("AKIA", "ASIA"),
    r"[\w-]{35}" + _END: ("AIza",),
    r"[A-Za-z0-9_-]{24,}": (
        *("gsk_", "r8_", "rk_live_", "sk_live_", "sk_test_", "rk_test_", "pplx-", "xai-", "nvapi-"),
    ),
    r"[A-Za-z0-9]{24,}": (
        *("fw_", "tgp_v1_", "csk-", "jina_", "tvly-", "ya29.", "dapi", "dop_v1_", "hf_oauth_", "hf_jwt_", "whsec_"),
        *("dckr_pat_", "figd_", "glsa_", "hvs.", "ntn_", "lin_api_", "shpat_"),
    ),
}
_SECRETS = {
    "a Hugging Face token": r"(?:hf|api_org)_[A-Za-z0-9]{30,}",
    "a Weights & Biases key": r"(?i:wandb)[^\n]{0,40}?\b[0-9a-f]{40}\b|wandb_v1_\w{20,}",
    "an API key": r"(?:gh[pousr]_\w|github_pat_\w|npm_[A-Za-z0-9])\w{30,}"
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
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "0": "\0"}
_NESTED = 3  # levels of escapes or encodings in one another
_SURROGATE_PAIRS = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_BLOB = re.compile("[A-Za-z0-9+/_-]{24,}")
_FOLDED = re.compile(r"(?<=[A-Za-z0-9+/]{40})\r?\n[ \t]*(?=[A-Za-z0-9+/])")  # base64 in several lines
_HEX = re.compile(r"(?:(?:0[xX])?[0-9a-fA-F]{2}[\s,:;_-]{0,4}){20,}+[0-9a-fA-F]?")
_NO_HEX = re.compile(r"0[xX]|[^0-9a-fA-F]")
_CODE = r"(?:1?\d\d|2[0-4]\d|25[0-5])(?!\d)"  # of a byte, in decimal
_NUMBERS = re.compile(rf"(?<!\d)(?:{_CODE}[\s,;]{{1,12}}){{19,}}+(?:{_CODE})?")
_BYTES = re.compile("[\u00c2-\u00f4][\u0080-\u00bf]{1,3}")  # UTF-8 decoded as Latin-1
_ASCII = re.compile(r"[\t\n\r -~]{20,}")
_INVISIBLE = re.compile(  # default-ignorable in Unicode
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\U000e0000-\U000e0fff]"
)
_SECRET_VARIABLE = re.compile(r"(?:TOKEN|KEY|SECRET|PASS|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_SHORTEST_KEY, _LONGEST_WORD = 8, 15  # shorter values and plain words are in every vocabulary


class LeakError(ThinkAsLocalsError, ValueError):
    """A file must not be published; the message names the file and the kind of content, never the value."""


def scan_for_leaks(files: Iterable[HubFile], run: TrainedRun) -> None:
    """Raise a `LeakError` if a file contains a secret or a path of this machine."""
    detectors: dict[str, Any] = get_mapping_from_secret_type_to_class()
    known = [(f"a secret ({kind})", regex) for kind in sorted(_SERVICES) for regex in detectors[kind]().denylist]
    # The prefix stands before the look behind it: `re` finds a literal at the start of a pattern ten times as fast.
    keys = [
        ("an API key", f"{re.escape(prefix)}(?<={_START}{re.escape(prefix)}){rest}")
        for rest, prefixes in _PREFIXED.items()
        for prefix in prefixes
    ]
    own = [(kind, re.compile(pattern)) for kind, pattern in (*keys, *_SECRETS.items(), *_local_secrets(run))]
    found: dict[str, None] = {}
    for file in files:
        texts = {*readings(file.path.encode() + b"\n" + file.text())}
        found |= {
            f"{file.path}: {kind}": None
            for kind, pattern in (*own, *known)
            if any(pattern.search(text) for text in texts)
        }
    if found:
        raise LeakError(f"nothing was uploaded, remove these first (values are not shown): {'; '.join(found)}")


def readings(content: bytes) -> Iterator[str]:
    """Yield the texts that the bytes of a file may stand for."""
    plain = [content.decode(errors="surrogateescape")]
    if b"\0" in content:
        forms = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
        plain += [content[start:].decode(form, errors="ignore") for form in forms for start in range(4)]
    for text in plain:
        yield from _decoded(text, _NESTED)


def _decoded(text: str, levels: int) -> Iterator[str]:
    """Yield a text with its escapes decoded, and the texts encoded in it, up to `levels` deep."""
    forms = _forms(text)
    yield from forms
    held = "\n".join({part for form in forms for part in _from_digits(form)})
    yield held
    # Only text of some length is decoded further, so no level is larger than the one before.
    inner = "\n".join(run[0] for run in _ASCII.finditer(_seen(held)))
    if inner and levels:
        yield from _decoded(inner, levels - 1)


def _forms(text: str) -> list[str]:
    """Return a text and its forms with escapes decoded, in several orders of the decoders."""
    found = {text: None}
    for decoders in _ORDERS:
        form = text
        for decode in decoders:
            form = decode(form)
            found[form] = None
    return list(found)


def _seen(text: str) -> str:
    """Return a text as it looks: without invisible characters, with plain letters for wide or styled ones."""
    text = text.replace("\u0120", " ").replace("\u2581", " ")  # spaces in vocabularies
    if text.isascii():
        return text
    text = _BYTES.sub(lambda character: character[0].encode("latin-1").decode(errors="ignore"), text)
    return normalize("NFKC", _INVISIBLE.sub("", text))


def _unescaped(text: str) -> str:
    """Decode the escapes of JSON, YAML and C."""
    text = _ESCAPE.sub(_meaning, text)
    if _SURROGATE_PAIRS.search(text):  # surrogate pairs, as in JSON
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def _meaning(escape: re.Match[str]) -> str:
    if number := escape[1] or escape[2] or escape[3]:
        return chr(min(int(number, 16), 0x10FFFF))
    if escape[4]:
        return chr(int(escape[4], 8))
    character = escape[5] or ""  # nothing: a folded line
    return _ESCAPES.get(character, character)


def _unquoted(text: str) -> str:
    """Decode the escapes of mail (quoted-printable)."""
    return _QUOTED.sub(lambda escape: chr(int(escape[1], 16)) if escape[1] else "", text)


def _from_digits(text: str) -> Iterator[str]:
    """Yield the texts encoded in base64 (any alphabet, one line or several), hexadecimal or decimal numbers."""
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
    return content.replace(b"\0", b"").decode(errors="ignore")  # without zeros, UTF-16 becomes ASCII


_DECODERS: tuple[Callable[[str], str], ...] = (_seen, _unescaped, partial(unquote, errors="surrogateescape"), unescape)
_ORDERS = (
    # As mail only after the others: to mail, the `=` that ends a key and its line is a fold.
    _DECODERS * _NESTED + (_unquoted, *_DECODERS) * (_NESTED - 1),
    (_unquoted, *_DECODERS[::-1]) * _NESTED,
)


def _local_secrets(run: TrainedRun) -> Iterator[tuple[str, str]]:
    """Yield the secrets of this environment and login, the home directory and the paths of the run."""
    known = {f"the value of {name}": value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)}
    known["the token of this login"] = get_token() or ""
    for kind, value in known.items():
        if len(value) >= _SHORTEST_KEY and not (value.isalpha() and len(value) <= _LONGEST_WORD):
            yield kind, _as_decoded(value)
    if Path.home() != Path("/"):  # a vocabulary may have `/root`, but not a file in it
        yield "a path in the home directory", _as_decoded(f"{Path.home()}/") + r"[\w.\udc80-\udcff-]"
    data = (*run.config.data.sources.values(), *(data for result in run.results for data in result.sources))
    named = [Path(path).expanduser() for path in (run.config.model.path, *(each.path for each in data)) if path]
    folders = {run.folder.path, *(result.path.parents[1] for result in run.results)}
    absolute = {path for folder in folders for path in (folder.resolve(), folder.absolute())}
    absolute |= {path for path in named if path.is_absolute()}
    for path in sorted(map(str, absolute)):
        yield "a path of the run", _as_decoded(path) + r"(?![\w.-])"


def _as_decoded(value: str) -> str:
    """Return a pattern for a value, and for its forms with escapes decoded."""
    forms = {value, *(form for form in _forms(value) if len(form) >= _SHORTEST_KEY)}
    return f"(?:{'|'.join(map(re.escape, sorted(forms)))})"
