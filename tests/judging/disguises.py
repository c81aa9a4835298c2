"""Ways to write a tag or a control token so that some tokenizer reads it as one, and such tokenizers."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

FAMILIES = {
    "ChatML": ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    "Qwen 3": ("<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    "Llama 3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "Llama 2": ("<s>", "</s>", "[INST]", "[/INST]", "<<SYS>>"),
    "Mistral": ("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]"),
    "Gemma": ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    "DeepSeek": ("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    "Phi": ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    "gpt-oss": ("<|start|>", "<|channel|>", "<|message|>", "<|return|>"),
    "BERT": ("[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]"),
}
NORMALIZERS: dict[str, Any] = {
    "none": None,
    "lowercase": normalizers.Lowercase(),
    "NFKC": normalizers.NFKC(),
    "NFKC, cleaned": normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Strip()]),
    "NFKD, no accents": normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()]),
    "NFKD, no accents, lowercase": normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    ),
    "Nmt": normalizers.Nmt(),
    "spaces, lowercase": normalizers.Sequence([normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]),
    "Bert": normalizers.BertNormalizer(),
    "Bert, cased": normalizers.BertNormalizer(lowercase=False, strip_accents=True),
}

KINDS = ("BPE", "Unigram", "WordPiece")


def disguises(text: str) -> Iterator[str]:
    """A text as it is and in forms that some normalizer turns into it."""
    middle = len(text) // 2
    yield text
    yield text.upper()
    yield text.swapcase()
    yield "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)  # full width
    yield "".join(chr(0x1D5BA + ord(c) - ord("a")) if "a" <= c <= "z" else c for c in text)  # sans-serif
    hidden = "\u0301\u0338\u200b\u2060\u00ad\x01\x7f\ufffd\ue000\ufeff\u1cf2"
    for inside in hidden:
        yield text[:middle] + inside + text[middle:]
        yield text[:1] + inside + text[1:]
    for inside in ("\x0b", "\x1c", "\x1f", "\x85\x0c"):  # spaces to some readers, nothing to others
        yield text[:middle] + inside + text[middle:]
    yield text[:-1] + "\x85x" + text[-1] + text
    for nothing, space in (("\x1c", "\x85"), ("\x0b", "\x0c"), ("\x1f", "\x0b")):  # each to one reader, at once
        yield text[:middle] + nothing + text[middle:-1] + space + "x" + text[-1]
    yield unicodedata.normalize("NFC", "".join(c + "\u0301" if c.isalpha() else c for c in text))
    yield text[0].replace("<", "\u226e") + text[1:-1] + text[-1].replace(">", "\u226f")
    yield text.replace("<", "\ufe64").replace(">", "\ufe65")
    yield text.replace("s", "\u017f").replace("k", "\u212a")
    yield text.replace("▁", " ")
    yield text[:-1] + text
    yield text + text[1:]


def tokenizer(kind: str, tokens: tuple[str, ...], normalizer: Any, *, special: bool, normalized: bool) -> Tokenizer:
    """One that knows the characters of ASCII, and these tokens; `normalized`: finds them in the normalised text."""
    unknown = "[unknown]"
    pieces = [unknown, *(chr(code) for code in range(33, 127)), "▁"]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    model: Any = {
        "BPE": lambda: models.BPE(vocabulary, [], unk_token=unknown),
        "Unigram": lambda: models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0),
        "WordPiece": lambda: models.WordPiece(
            vocabulary | {f"##{piece}": len(pieces) + place for place, piece in enumerate(pieces)}, unk_token=unknown
        ),
    }[kind]()
    made = Tokenizer(model)
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer() if kind == "WordPiece" else pre_tokenizers.Metaspace()
    add = made.add_special_tokens if special else made.add_tokens
    add([AddedToken(token, special=special, normalized=normalized) for token in tokens])
    return made
