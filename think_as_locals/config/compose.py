"""Compose a recipe, conf/ and overrides into plain values with Hydra; find launch files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml

from think_as_locals.types import ConfigError, cut, shown

if TYPE_CHECKING:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override

ASSETS = next(path for path in (Path(__file__).parents[1] / "_assets", Path(__file__).parents[2]) if path.is_dir())
"""The folder of conf/, recipes/ and launch/: beside the package in a checkout, inside it in a wheel."""
_RESOLVERS = ("now",)  # what `${NAME:...}` may call in a recipe: others read the environment, or hide that they do
_MAX_VALUES = 20_000  # of a recipe once its aliases are written out, a long text counting as several; ours have < 100
_MAX_REFERRED = 2_000  # values that interpolations stand for, counted alike; ours have 10
_LONG = 100  # characters


def compose_recipe(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Compose a recipe with conf/ and overrides; its `defaults` begin with a root of conf/ or a built-in recipe."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    recipe = find_recipe(path)
    given = [override for text in overrides for override in _as_overrides(text)]
    ours = [f"hydra.searchpath=[{quoted(f'file://{ASSETS}/conf')}]", f"recipe={quoted(recipe.stem)}"]
    try:
        # In a folder of its own: files beside a recipe must not take the place of conf/.
        with TemporaryDirectory() as folder:
            (Path(folder) / "recipes").mkdir()
            for parent in recipes():  # `defaults: [/recipes/NAME]`; each sets keys at the top
                inherited = "# @package _global_\n" + parent.read_text(encoding="utf-8")
                (Path(folder) / "recipes" / parent.name).write_text(inherited, encoding="utf-8")
            text = recipe.read_text(encoding="utf-8")
            _check_document(text)
            (Path(folder) / "a_recipe.yaml").write_text(text, encoding="utf-8")
            with initialize_config_dir(folder, version_base="1.3"), _plain_interpolations():
                composed = compose("a_recipe", overrides=[*ours, *given])
                unset = sorted(OmegaConf.missing_keys(composed))
                values: Any = OmegaConf.to_container(composed, resolve=True)
    except ConfigError as error:
        raise ConfigError(f"{recipe}: {error}") from None
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, OSError, ValueError, RecursionError) as error:
        remedy = ""
        if lacking := re.search(r"Could not load '(?:recipes/)?(.*)'", str(error)):
            known = [path.stem for path in recipes()]
            remedy = (
                f"{nearest(lacking[1], known)}; defaults are a root of conf/ (/config, /carb, /scpo, ...) or "
                f"recipes that come with it (/recipes/NAME: {', '.join(known)}), then options of conf/; no other files"
            )
        raise ConfigError(f"{recipe}: {reason(error)}{remedy}") from error
    if unset:
        raise ConfigError(f"{recipe}: no default for {', '.join(unset)}: set it, e.g. {unset[0]}=...")
    if large := [key for key, value in values.items() if _holds_large(value)]:
        raise ConfigError(f"{recipe}: {large[0]}: a whole number of more than 64 bits, expected a smaller one")
    # The first line of a recipe launches it; to YAML it is a key that starts with "if ".
    return {str(key): value for key, value in values.items() if not str(key).startswith("if ")}


def group_options() -> dict[str, list[str]]:
    """Return the option names of every group in conf/, e.g. `{"model": ["quickstart", "qwen3_8b"], ...}`."""
    folders = sorted(entry for entry in (ASSETS / "conf").iterdir() if entry.is_dir())
    return {folder.name: sorted(option.stem for option in folder.glob("*.yaml")) for folder in folders}


def recipes() -> list[Path]:
    """Return the recipes that come with the package."""
    return sorted((ASSETS / "recipes").glob("*.yaml"))


def find_recipe(name: str | Path) -> Path:
    """Return the path of a recipe: a file, or one that comes with the package by its name."""
    path = Path(name)
    named = [ASSETS / "recipes" / f"{path}.yaml"] if len(path.parts) == 1 else []
    for candidate in (path, ASSETS / path, *named):
        if os.path.isfile(candidate):  # noqa: PTH113 - Path.is_file raises for a name that is too long
            return candidate.resolve()
    known = [recipe.stem for recipe in recipes()]
    near = nearest(path.stem, known) or f"; those that come with the package: {', '.join(known)}"
    raise ConfigError(f"{path}: no such file{near} (tal recipes says what each does)")


def find_launch(name: str) -> Path:
    """Return the path of an accelerate configuration: one of launch/ by its name, or a file."""
    known = sorted(path.stem for path in (ASSETS / "launch").glob("*.yaml"))
    path = ASSETS / "launch" / f"{name}.yaml" if name in known else Path(name).expanduser()
    if not os.path.isfile(path):  # noqa: PTH113
        raise ConfigError(
            f"no launch file {shown(name)}{nearest(name, known)}; available: {', '.join(known)}, or a file"
        )
    return path.resolve()


@dataclass(frozen=True, slots=True)
class Launch:
    """An accelerate configuration."""

    kind: str  # as accelerate calls it: NO, MULTI_GPU, DEEPSPEED, FSDP
    zero_stage: int  # DeepSpeed's; 3 for FSDP2, which shards the same; 0 for none
    processes: int  # on all machines
    machines: int = 1
    name: str = ""  # of its file
    variables: Mapping[str, str] = field(default_factory=dict)  # of the environment: what it tells each process


# Keys of `deepspeed_config` and the variables by which accelerate passes them on.
_DEEPSPEED = {
    "zero_stage": "DEEPSPEED_ZERO_STAGE",
    "zero3_init_flag": "DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "offload_optimizer_device": "DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "deepspeed_config_file": "DEEPSPEED_CONFIG_FILE",
    "gradient_clipping": "GRADIENT_CLIPPING",
}


def _variables(kind: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Return what `accelerate launch` puts into the environment of each process for a configuration."""
    found = {"ACCELERATE_MIXED_PRECISION": values.get("mixed_precision", "no")}
    if kind == "DEEPSPEED":
        given = values.get("deepspeed_config") or {}
        found |= {f"ACCELERATE_{name}": given[key] for key, name in _DEEPSPEED.items() if key in given}
        found["ACCELERATE_USE_DEEPSPEED"] = True
    elif kind == "FSDP":
        found |= {key.upper(): value for key, value in (values.get("fsdp_config") or {}).items()}
        found["ACCELERATE_USE_FSDP"] = True
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in found.items()}


def read_launch(path: Path) -> Launch:
    """Read an accelerate configuration."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as an accelerate configuration: {reason(error)}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected an accelerate configuration, a mapping, got {type(values).__name__}")
    for key in ("num_processes", "num_machines"):
        if type(got := values.setdefault(key, 1)) is not int or got < 1:
            raise ConfigError(f"{path}: {key}: got {shown(got)}, expected a whole number from 1")
    kind = str(values.get("distributed_type", "NO"))
    stages = {"DEEPSPEED": (values.get("deepspeed_config") or {}).get("zero_stage", 0), "FSDP": 3}
    processes, machines = values["num_processes"], values["num_machines"]
    return Launch(kind, int(stages.get(kind, 0)), processes, machines, path.stem, _variables(kind, values))


def read_override(text: str, parser: OverridesParser | None = None) -> Override:
    """Parse an override with Hydra's grammar."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return (parser or OverridesParser.create()).parse_overrides([text])[0]
    except (HydraException, ValueError, RecursionError) as error:
        key, message = text.partition("=")[0], reason(error).partition(" See https")[0]
        raise ConfigError(
            f"override {key}: cannot be read ({message}); a value with commas, '=', brackets or letters beyond ASCII "
            f"needs quotes, and these the shell's: '{key}=\"...\"'"
        ) from error


_ADDED = {  # PLACE.NAME=OPTION: the group of the option, and what Hydra adds for it
    "rms": ("rm", ["+rm@rms.{name}={option}"]),
    "data.mix": ("data", ["+data@data.mix.{name}={option}"]),
    "eval.sets": ("data", ["+eval/shared@eval.sets.{name}=set", "+data@eval.sets.{name}.data={option}"]),
    "tasks": ("task", ["+task@tasks.{name}={option}"]),
}
_CHOSEN = {  # SECTION=OPTION: as above, where a group is not called like the section
    "teacher": ("rm", ["rm@teacher={option}"]),
    "editor": ("policy", ["policy@editor={option}"]),
    "sample.policy": ("policy", ["policy@sample.policy={option}"]),
    "sample.data": ("data", ["data@sample.data={option}"]),
    "sample.scorer": ("rm", ["rm@sample.scorer={option}"]),
}
_OF_TASKS = {"data": "data", "scorer": "rm"}  # tasks.NAME.SECTION=OPTION: the group


def _as_overrides(text: str) -> list[str]:
    """Leave group choices to Hydra; set or add any other key, so that only the schema decides which keys exist."""
    key, _, option = text.partition("=")
    if not key or ("=" not in text and not text.startswith("~")):
        raise ConfigError(f"override {shown(text)}: expected key=value, or ~key to remove one that the recipe sets")
    if read_override(text).is_sweep_override():
        raise ConfigError(
            f"{text}: several values are only for sweeps (tal run -m); a list is {key}=[...], a text with commas "
            f"'{key}=\"...\"'"
        )
    if re.match(r"[+~]*(hydra|sweep)\b", key):
        raise ConfigError(f"{text}: only for sweeps (tal run -m)")
    if key.lstrip("+~") == "recipe":
        raise ConfigError(f"{text}: recipe is the name of the recipe's file; use run.name to name a run")
    place, _, name = key.rpartition(".")
    groups, (group, added) = group_options(), _CHOSEN.get(key) or _ADDED.get(place, (key, [text]))
    if re.fullmatch(r"tasks\.\w+", place) and name in _OF_TASKS:
        group, added = _OF_TASKS[name], [f"{_OF_TASKS[name]}@{key}={{option}}"]
    if group not in groups:
        # Hydra merges a mapping into the one that is there: emptied first, it is replaced.
        emptied = [f"++{key}=null"] if option.startswith("{") and not key.startswith(("+", "~")) else []
        return [*emptied, text if key.startswith(("+", "~")) else f"++{text}"]
    if option not in groups[group]:
        near = nearest(option, groups[group])
        raise ConfigError(f"{key}={option}: no such option{near}; available: {', '.join(groups[group])}")
    return [override.format(name=name, option=option) for override in added]


def literal(text: str) -> str:
    """Return a text as a recipe has to hold it: `${` stands for itself."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def quoted(text: str) -> str:
    """Quote a text for Hydra's override grammar, where a backslash is one unless a quote follows."""
    escaped = re.sub(r'(\\*)("|$)', lambda end: 2 * end[1] + ('\\"' if end[2] else ""), literal(text))
    return f'"{escaped}"'


@contextmanager
def _plain_interpolations() -> Iterator[None]:
    """Let interpolations refer to other values, up to `_MAX_REFERRED`, and call `_RESOLVERS`; else ConfigError."""
    from omegaconf import Container, Node, OmegaConf
    from omegaconf.basecontainer import BaseContainer

    def refuse(*_: Any) -> Any:
        raise ConfigError(
            "an interpolation may refer to other keys (${KEY}) but call nothing: what it read, such as the "
            "environment, would stand in config.yaml, which is shown to others; let the shell put in what may be seen "
            "(KEY=$NAME)"
        )

    resolvers, resolve, referred = dict(BaseContainer._resolvers), Container._resolve_node_interpolation, 0

    def count(node: Any) -> None:
        nonlocal referred
        content = node._content if isinstance(node, Container) else node._value()
        referred += 1 + (len(content) // _LONG if isinstance(content, str) else 0)
        if referred > _MAX_REFERRED:
            raise ConfigError(f"interpolations expand to more than {_MAX_REFERRED:,} values: write out those you need")
        if isinstance(content, dict | list):
            for inner in content.values() if isinstance(content, dict) else content:
                count(inner)

    def resolve_bounded(self: Container, *arguments: Any, **named: Any) -> Node:
        node = resolve(self, *arguments, **named)
        count(node)
        return node

    for name in resolvers.keys() - {*_RESOLVERS}:
        OmegaConf.register_new_resolver(name, refuse, replace=True)
    Container._resolve_node_interpolation = resolve_bounded  # type: ignore[method-assign]
    try:
        yield
    finally:
        BaseContainer._resolvers.update(resolvers)
        Container._resolve_node_interpolation = resolve  # type: ignore[method-assign]


def _check_document(text: str) -> None:
    """Raise a ConfigError for Hydra's own keys, and for aliases that, written out, make a document large or endless."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = _MAX_VALUES + 1  # until it is known: an alias to itself has no end
            parts = node.value if isinstance(node, yaml.SequenceNode | yaml.MappingNode) else ()
            inner = chain.from_iterable(part if isinstance(part, tuple) else (part,) for part in parts)
            text = len(node.value) // _LONG if isinstance(node, yaml.ScalarNode) else 0
            sizes[id(node)] = min(1 + text + sum(map(size, inner)), _MAX_VALUES + 1)
        return sizes[id(node)]

    document = yaml.compose(text, Loader=yaml.SafeLoader)
    if document is not None and size(document) > _MAX_VALUES:
        raise ConfigError(f"its aliases expand to more than {_MAX_VALUES:,} values: write out those you need")
    values = yaml.safe_load(text)
    chosen = values.get("defaults") if isinstance(values, dict) else None
    if chosen is not None and ("hydra" in values or "hydra/" in str(chosen) or "@package" in text):
        raise ConfigError("Hydra's own keys (hydra, hydra/..., @package) have no effect in a recipe: drop them")


def _holds_large(value: Any) -> bool:
    """Return whether a value is or holds a whole number of more than 64 bits, which Python may not even write."""
    if isinstance(value, dict | list):
        return any(map(_holds_large, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and value.bit_length() > 63


def reason(error: Exception) -> str:
    """Return an error's message on one line, without the folders that Hydra searched."""
    message = re.sub(
        r"'a_recipe'|\"[^\"]*a_recipe\.yaml\"", "the recipe", str(error).partition("Config search path")[0]
    )
    return cut(" ".join(message.split())) or type(error).__name__


def nearest(name: object, known: Sequence[str]) -> str:
    """Return a suggestion for an unknown name: "; did you mean ...?", or nothing where no known name is similar."""
    near = get_close_matches(name, known, n=1) if isinstance(name, str) and len(name) <= _LONG else ()
    return f"; did you mean {near[0]!r}?" if near else ""
