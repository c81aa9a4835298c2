"""What lies beside a model's weights, in a directory or on the Hub, read without loading the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from think_as_locals.generation.engine import control_marks
from think_as_locals.types import ModelError


def model_file(path: str, name: str, revision: str | None = None) -> Path | None:
    """A file of a model; `None` where the model has no such file.

    Args:
        path: Directory or Hub id.
        name: Of the file.
        revision: Commit, tag or branch on the Hub.

    Raises:
        ModelError: the Hub has no such model, or cannot be asked and the file has not been fetched before.
    """
    if Path(path).is_dir():
        file = Path(path) / name
        return file if file.is_file() else None
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.errors import RemoteEntryNotFoundError as Missing

    try:
        return Path(hf_hub_download(path, name, revision=revision))
    except Missing:
        return None
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        if isinstance(error, LocalEntryNotFoundError):
            found = try_to_load_from_cache(path, name, revision=revision)
            if found is not None and not isinstance(found, str):  # the Hub said before that there is none
                return None
        raise ModelError(
            f"{path!r} is no directory, and the Hub gives no {name} of it ({type(error).__name__}): check the name, "
            "the revision, your access to it and the network, or give a directory"
        ) from error


def special_tokens(path: str, revision: str | None = None) -> tuple[str, ...]:
    """Texts that a model's tokenizer or chat template reads as control tokens: those of `Chat.special_tokens`.

    None where it has no tokenizer.json.

    Raises:
        ModelError: as `model_file`; or the file is not that of a tokenizer.
    """
    file = model_file(path, "tokenizer.json", revision)
    if file is None:
        return ()
    try:
        added: list[Any] = json.loads(file.read_text(encoding="utf-8")).get("added_tokens", [])
        tokens = [(token["content"], token["special"]) for token in added]
        return tuple(sorted(control_marks(tokens, _chat_template(path, revision))))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{file}: not the file of a tokenizer: {error!r}") from error


def _chat_template(path: str, revision: str | None) -> str:
    """A model's chat template, a file of its own or a field of the tokenizer's; empty where it has none."""
    if file := model_file(path, "chat_template.jinja", revision):
        return file.read_text(encoding="utf-8")
    file = model_file(path, "tokenizer_config.json", revision)
    return str(json.loads(file.read_text(encoding="utf-8")).get("chat_template")) if file else ""
