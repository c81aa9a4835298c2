"""Collect the files of a run for the Hub: only those on an allow-list."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import safe_open

from think_as_locals.hub.source_run import JudgeRun, ScalarRun, TrainedRun
from think_as_locals.judging import prompt_texts
from think_as_locals.reward_models.judge import SETTINGS_FILE
from think_as_locals.reward_models.training_items import TRAINING_ITEMS_FILE
from think_as_locals.runtime.files import read_json
from think_as_locals.runtime.model_files import files_fault
from think_as_locals.runtime.run_folder import refuse_links
from think_as_locals.types import ConfigError, DataError

CARD = "README.md"

_TOKENIZER = {
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "chat_template.jinja"),
}
_MODEL = {*("config.json", "generation_config.json", "model.safetensors.index.json", "LICENSE"), TRAINING_ITEMS_FILE}
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|adapter_model\.safetensors")
_ADAPTER = "adapter_config.json"
_FIGURES = "scpo.json"  # the figures of the country that a reward model is for
_GENERATED = re.compile(rf"{'|'.join(map(re.escape, (CARD, _FIGURES)))}|prompt/\w+\.txt|(carb|probes)/[\w.-]+\.json")


@dataclass(frozen=True)
class HubFile:
    """A file of the repository."""

    path: str  # in the repository
    content: bytes | Path  # the scanned content; the local file for weights, which may not fit in memory
    generated: bool = False  # whether it was written for the Hub

    @property
    def size(self) -> int:
        """Return its size in bytes."""
        return self.content.stat().st_size if isinstance(self.content, Path) else len(self.content)

    @cached_property
    def sha256(self) -> str:
        """The hash of its content, which the Hub has of large files."""
        if isinstance(self.content, bytes):
            return hashlib.sha256(self.content).hexdigest()
        with self.content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def text(self) -> bytes:
        """Return the text in it; for weights the header, with the names of tensors."""
        if isinstance(self.content, bytes):
            return self.content
        with safe_open(self.content, framework="np") as weights:
            return json.dumps([weights.metadata(), list(weights.keys())], ensure_ascii=False).encode()


def is_pushed_path(path: str) -> bool:
    """Return whether a file on the Hub may come from an earlier push, so that a push without it removes it."""
    names = (_TOKENIZER | _MODEL | {_ADAPTER, SETTINGS_FILE}) - {"LICENSE"}
    return path in names or any(pattern.fullmatch(path) for pattern in (_WEIGHTS, _GENERATED))


def collect_files(run: JudgeRun | ScalarRun, adapter: bool) -> tuple[list[HubFile], list[str]]:
    """Return the files to push, except the card and its results, and the reasons why others are left out.

    With `adapter`, these are those of the LoRA adapter instead of the judge that it is merged into.
    """
    root = run.folder.path
    for source in {root, *(result.path.parents[1] for result in run.results)}:
        refuse_links(source)
    folder = run.folder.adapter if adapter else run.model
    if adapter:
        _check_adapter(run, folder)
    settings = {SETTINGS_FILE} if isinstance(run, JudgeRun) else set()
    allowed = _TOKENIZER | settings | ({_ADAPTER, TRAINING_ITEMS_FILE} if adapter else _MODEL)
    where = folder.relative_to(root)
    files, left_out = [], []
    for path in sorted(folder.iterdir()):
        weights = _WEIGHTS.fullmatch(path.name) and path.name.startswith("adapter") == adapter
        if weights or path.name in allowed:
            files.append(HubFile(path.name, path if weights else path.read_bytes()))
        elif path.name != CARD:  # the card is written anew
            left_out.append(f"{where}/{path.name!r}: not on the list of files that are pushed")
    if fault := files_fault(folder):
        raise DataError(fault)
    index = folder / "model.safetensors.index.json"
    shards = read_json(index).get("weight_map", {}).values() if index.is_file() else ["model.safetensors"]
    needed = {_ADAPTER, "adapter_model.safetensors"} if adapter else {"config.json", *settings, *map(str, shards)}
    if missing := sorted((needed | {"tokenizer_config.json"}) - {file.path for file in files}):
        raise DataError(f"{folder}: lacks {', '.join(missing)}, so the model could not be loaded")
    if adapter:
        # The name of the base model on the Hub, instead of a local path.
        base = {"base_model_name_or_path": run.base, "revision": run.config.model.revision}
        of_adapter = json.loads((folder / _ADAPTER).read_bytes()) | base
        files = [_json_file(_ADAPTER, of_adapter) if file.path == _ADAPTER else file for file in files]
        extra = {SETTINGS_FILE, TRAINING_ITEMS_FILE, "LICENSE"} - {file.path for file in files}
        kept = [run.model / name for name in sorted(extra) if (run.model / name).is_file()]
        files += [HubFile(path.name, path.read_bytes()) for path in kept]
    return [*files, *_about(run)], left_out


def _about(run: JudgeRun | ScalarRun) -> Iterator[HubFile]:
    """Yield the prompt of a judge or the figures of a country, and the results, which contain no text of items."""
    if isinstance(run, JudgeRun):
        for name, text in sorted(prompt_texts(run.settings.prompt).items()):
            yield HubFile(f"prompt/{name.removesuffix('.txt')}.txt", f"{text}\n".encode(), generated=True)
    else:
        yield _json_file(_FIGURES, run.figures)
    for result in run.results:
        for stage, path in (("carb", result.path), ("probes", result.probes)):
            if path:
                yield HubFile(f"{stage}/{result.name.replace(', ', '-')}.json", path.read_bytes())


def _json_file(name: str, value: dict[str, Any]) -> HubFile:
    text = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)
    return HubFile(name, f"{text}\n".encode(), generated=True)


def _check_adapter(run: TrainedRun, folder: Path) -> None:
    """Raise a ConfigError if there is no adapter, or its base model is not on the Hub."""
    if not isinstance(run, JudgeRun):
        raise ConfigError("SCPO keeps reward models with adapters merged into them: push without --adapter")
    if run.config.lora is None or not folder.is_dir():
        raise ConfigError(f"{run.folder.path}: no adapter/, this run trained without lora=...: push without --adapter")
    if run.config.sft is not None:
        base = "the weights after the cold start, which are not on the Hub"
    elif run.base is None:
        base = f"model.path={run.config.model.path}, expected a model on the Hub (owner/name)"
    else:
        return
    raise ConfigError(f"the adapter belongs to {base}: push the judge that it is merged into, without --adapter")
