"""The files of a model: where they are, and what is wrong with them if a library cannot load it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb

from think_as_locals.runtime.files import file_fault
from think_as_locals.types import ModelError, ThinkAsLocalsError, cut

_CONFIG = "config.json"
_AGAIN = "save the model or download it again"
_TIMEOUT = 5.0  # seconds for the Hub to answer
# Of transformers and PEFT; ours.
_LOADERS = ("from_pretrained", "get_config_dict", "architecture", "load_published")


def unreachable() -> str | None:
    """Return why the Hub does not answer a request; `None` if it answers, whatever the answer."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of httpx or httpx2

    try:
        get_session().head(constants.ENDPOINT, timeout=_TIMEOUT)
    except (HTTPError, OSError) as error:
        return str(error) or type(error).__name__
    return None


def model_file(path: str, name: str, revision: str | None = None) -> Path | None:
    """Return a model's file, in a directory or on the Hub, or `None`; a ModelError if there is no such model."""
    if Path(path).is_dir():
        file = Path(path) / name
        return file if file.is_file() else None
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.errors import RemoteEntryNotFoundError as Missing

    try:
        return Path(hf_hub_download(path, name, revision=revision, local_files_only=unreachable() is not None))
    except Missing:
        return None
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        if isinstance(error, LocalEntryNotFoundError):
            found = try_to_load_from_cache(path, name, revision=revision)
            if found is not None and not isinstance(found, str):  # the cache says that the Hub has no such file
                return None
        raise ModelError(
            f"{path!r} is not a directory, and the Hub has no {name} of it ({type(error).__name__}): check the name, "
            "the revision, your access to it and the network, or give a directory"
        ) from error


def commit_of(path: str, revision: str | None) -> str | None:
    """Return the commit on the Hub that a revision of a model is now; of a directory or an adapter the revision."""
    file = None
    if not Path(path).is_dir():
        with suppress(ModelError):  # of an adapter alone, without a network
            file = model_file(path, _CONFIG, revision)
    return file.parent.name if file else revision  # transformers would apply an adapter's commit to its base


def files_fault(folder: Path) -> str | None:
    """Return why a directory has no whole model, going by the headers of its weights, or `None`."""
    if not any((folder / name).is_file() for name in (_CONFIG, "adapter_config.json")):
        found = [folder / name for name in ("model", "global_rm/model") if (folder / name / _CONFIG).is_file()]
        of_run = f"; a run's model is {found[0]}" if found else ""
        return f"{folder} is a directory without {_CONFIG}{of_run}"
    weights = sorted(folder.glob("*.safetensors"))
    if not weights and not list(folder.glob("*.bin")):
        return f"{folder} has no weights, expected model.safetensors: {_AGAIN}"
    if not find_spec("safetensors"):
        return None  # a missing package
    from safetensors import SafetensorError, safe_open

    for file in weights:
        try:
            with safe_open(file, "np"):
                pass
        except (SafetensorError, OSError, ValueError) as error:  # ValueError: an empty file
            return f"{file}: {file.stat().st_size:,} bytes that are no whole file of safetensors ({error}): {_AGAIN}"
    return None


@contextmanager
def reading_model(path: str) -> Iterator[None]:
    """Raise a ModelError that names the file at fault if a library cannot load a model in this block.

    Whatever comes out of a `from_pretrained` is about the model; other errors, of disks and of memory, pass unchanged.
    """
    try:
        yield
    except (ThinkAsLocalsError, MemoryError):
        raise
    except Exception as error:
        called = {frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)}
        if called.isdisjoint(_LOADERS) or file_fault(error) or type(error).__name__ == "OutOfMemoryError":  # torch's
            raise
        fault = files_fault(folder) if (folder := Path(path)).is_dir() else None
        if fault is None:
            reason = f"{type(error).__name__}: {cut(' '.join(str(error).split()), 500)}"
            if "ignore_mismatched_sizes" in reason:
                reason = "its weights have other shapes than config.json describes"
            fault = f"{path} cannot be loaded: {reason}: {_AGAIN}, all of it, unless this is about a setting of yours"
        raise ModelError(fault) from error
