"""Ways to write a secret so that only a reader who decodes them sees it, and files to write it into."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from urllib.parse import quote

KEYS = {
    "Hugging Face": "hf_" + "aB3" * 12,
    "W&B": "wandb_v1_" + "aB3" * 12,
    "OpenAI": "sk-proj-" + "aB3" * 12,
    "Anthropic": "sk-ant-api03-" + "aB3" * 20,
    "Groq": "gsk_" + "aB3" * 17,
    "Replicate": "r8_" + "aB3" * 12,
    "Stripe": "sk_live_" + "aB3" * 8,
    "Slack": "xoxb-123456789012-1234567890123-" + "aB3" * 8,
    "Slack hook": "https://hooks.slack.com/services/T" + "A1B2C3D4E" + "/B" + "A1B2C3D4E" + "/" + "aB3" * 8,
    "GitHub": "ghp_" + "aB3" * 12,
    "GitLab": "glpat-" + "aB3" * 7,
    "AWS": "AKIA" + "ABCDEFGH" * 2,
    "Azure": "AccountKey=" + "aB3/" * 21 + "aB==",
    "Google": "AIza" + "a1B2c3D" * 5,
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0." + "aB3" * 14,
    "PyPI": "pypi-AgEIcHlwaS5vcmc" + "aB3" * 25,
    "SendGrid": "SG." + "aB3" * 7 + "a." + "aB3" * 14 + "a",
    "private key": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "header": "Authorization: Bearer " + "aB3" * 8,
    "URL": "https://me:pa55word@pypi.example/simple",
}


def _escaped(text: str) -> str:
    return "".join(f"\\u{ord(character):04x}" for character in text)


DISGUISES: dict[str, Callable[[str], str]] = {
    "as it is": lambda key: key,
    "one character escaped": lambda key: key[:1] + _escaped(key[1]) + key[2:],
    "all characters escaped": _escaped,
    "escaped twice": lambda key: _escaped(key).replace("\\", "\\\\"),
    "slashes escaped": lambda key: key.replace("/", "\\/"),
    "as YAML's \\x": lambda key: f"\\x{ord(key[0]):02x}" + key[1:],
    "folded in YAML": lambda key: key[:5] + "\\\n   " + key[5:],
    "in a URL": lambda key: quote(key[:4] + "", safe="") + "".join(f"%{ord(c):02X}" for c in key[4:]),
    "as HTML": lambda key: f"&#{ord(key[0])};&#x{ord(key[1]):x};" + key[2:].replace("/", "&sol;"),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of a text around it": lambda key: base64.b64encode(f"my key: {key}!".encode()).decode(),
    "base64 for URLs": lambda key: base64.urlsafe_b64encode(f"?>{key}".encode()).decode().rstrip("="),
    "base64 behind a word": lambda key: "token_" + base64.b64encode(key.encode()).decode(),
    "base64 in lines": lambda key: base64.encodebytes(f"{'x' * 50} {key}".encode()).decode(),
    "base64 twice": lambda key: base64.b64encode(base64.b64encode(f"!{key}".encode())).decode(),
    "base64, escaped": lambda key: _escaped(base64.b64encode(key.encode()).decode()),
    "hexadecimal": lambda key: "id_" + key.encode().hex(),
    "hexadecimal, spaced": lambda key: key.encode().hex(" ").upper(),
    "hexadecimal of base64": lambda key: base64.b64encode(key.encode()).hex(),
    "a list of numbers": lambda key: ", ".join(map(str, key.encode())),
    "octal": lambda key: "".join(f"\\{ord(c):03o}" for c in key),
    "as in mail": lambda key: f"={ord(key[0]):02X}{key[1:6]}=\n{key[6:].replace('=', '=3D')}",
    "invisible characters inside": lambda key: "\u200b".join(key[:9]) + "\u00ad\u2060" + key[9:],
    "invisible characters, escaped": lambda key: key[:3] + _escaped("\u200d\ufeff") + key[3:],
    "wide letters": lambda key: "".join(chr(ord(c) + 0xFEE0) if c.isalnum() else c for c in key),
    "base64 of UTF-16": lambda key: base64.b64encode(key.encode("utf-16")).decode(),
}

FILES: dict[str, Callable[[str], bytes]] = {
    "a value of JSON": lambda text: f'{{"note": "{text}"}}'.encode(),
    "a key of JSON": lambda text: f'{{"a": [{{"{text}": 1}}]}}'.encode(),
    "a token": lambda text: f'{{"added_tokens": [{{"content": "{text}"}}], "model": {{"vocab": {{"a": 0}}}}}}'.encode(),
    "YAML": lambda text: f'a: 1\nb: "{text}"\n'.encode(),
    "a line of text": lambda text: f"See\n{text}\nthere.".encode(),
    "UTF-16": lambda text: f'{{"note": "{text}"}}'.encode("utf-16"),
    "UTF-16, big-endian, unmarked": lambda text: f'{{"note": "{text}"}}'.encode("utf-16-be"),
    "UTF-32": lambda text: f'{{"note": "{text}"}}'.encode("utf-32"),
}


def disguised() -> Iterator[tuple[str, bytes]]:
    """Yield a description and the bytes of a file, for every key, disguise and file."""
    for kind, key in KEYS.items():
        for how, disguise in DISGUISES.items():
            for where, write in FILES.items():
                yield f"{kind}, {how}, {where}", write(disguise(key))


def vocabulary(size: int) -> bytes:
    """Return a tokenizer.json of a byte-level vocabulary of made-up words, as large as those of pretrained models."""
    syllables = [a + b for a in "bcdfghjklmnpqrstvwxyzABCDEFGHIJKLMNOP_-/" for b in "aeiouAEIOU0123456789"]
    words, count = {}, len(syllables)
    for number in range(size):
        parts = [syllables[(number * 7 + k * 31 * (number // count + 1)) % count] for k in range(2 + number % 9)]
        words[("\u0120" if number % 2 else "") + "".join(parts) + str(number)] = number
    merges = [[word[:3], word[3:]] for word in words]
    return json.dumps({"model": {"type": "BPE", "vocab": words, "merges": merges}}, ensure_ascii=False).encode()
