"""Compose a recipe, conf/ and overrides into plain values with Hydra."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from think_as_locals.types import ConfigError, cut, shown

if TYPE_CHECKING:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

ASSETS = next(path for path in (Path(__file__).parents[1] / "_assets", Path(__file__).parents[2]) if path.is_dir())
"""The folder of conf/, recipes/ and launch/: beside the package in a checkout, inside it in a wheel."""
RECIPE = "a_recipe"  # what Hydra calls the recipe that is composed
_RESOLVERS = ("now",)  # functions that recipes may call as `${NAME:...}`; others can read the environment
_MAX_VALUES = 20_000  # values of a recipe with its aliases expanded, long texts counting as several; ours have < 100
_MAX_INTERPOLATED = 2_000  # values that interpolations expand to, counted alike; ours have 10
_LONG_TEXT = 100  # characters


def compose_recipe(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Compose a recipe with conf/ and overrides; its `defaults` begin with a root of conf/ or a recipe of ours."""
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    recipe = find_recipe(path)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", recipe.stem).strip("._-")[:60] or "recipe"  # for the name of its runs
    groups = group_options()
    given = [override for text in overrides for override in _as_overrides(text, groups)]
    try:
        text = recipe.read_text(encoding="utf-8")
        composed = _composed(stem, text, given, groups)
        with _plain_interpolations():
            unset = sorted(OmegaConf.missing_keys(composed))
            values: Any = OmegaConf.to_container(composed, resolve=True)
    except ConfigError as error:
        raise ConfigError(f"{recipe}: {error}") from None
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, OSError, ValueError, RecursionError) as error:
        if "Could not override 'recipe'" in str(error):
            expected = (
                "expected YAML whose `defaults` begin with a root of conf/, such as /config, or with /recipes/NAME"
            )
            raise ConfigError(f"{recipe}: not a recipe, {expected}: tal recipes copy NAME gives one to edit") from error
        if deleted := re.search(r"Could not delete from config\. '(.*)' does not exist", str(error)):
            parent, _, name = deleted[1].rpartition(".")
            known = list[str]()
            with suppress(HydraException, OmegaConfBaseException):  # other overrides may be wrong too
                whole = _composed(stem, text, [each for each in given if not each.startswith("~")], groups)
                section = OmegaConf.select(whole, parent) if parent else whole
                known += [str(key) for key in section or () if key != name and not str(key).startswith("if ")]
            has = f"{nearest(name, known)}; available: {', '.join(known)}" if known else ", as it has no keys"
            raise ConfigError(f"{recipe}: ~{deleted[1]}: {parent or 'the recipe'} has no {name}{has}") from None
        remedy = "; save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        if lacking := re.search(r"Could not load '(?:recipes/)?(.*)'", str(error)):
            known = [path.stem for path in recipes()]
            remedy = (
                f"{nearest(lacking[1], known)}; defaults are a root of conf/ (/config, /carb, /scpo, ...) or "
                f"recipes that come with it (/recipes/NAME: {', '.join(known)}), then options of conf/; no other files"
            )
        raise ConfigError(f"{recipe}: {reason(error)}{remedy}") from error
    if unset:
        raise ConfigError(f"{recipe}: no default for {', '.join(unset)}: set it, e.g. {unset[0]}=...")
    if large := [key for key, value in values.items() if _contains_large_int(value)]:
        raise ConfigError(f"{recipe}: {large[0]}: a whole number of more than 64 bits, expected a smaller one")
    # The first line of a recipe launches it; to YAML it is a key that starts with "if ".
    return {str(key): value for key, value in values.items() if not str(key).startswith("if ")}


def _composed(name: str, text: str, given: Sequence[str], groups: Mapping[str, Sequence[str]]) -> DictConfig:
    """Return what Hydra composes from a recipe's text, from a cache if only values differ, as they do in a sweep.

    Hydra sets values after it has composed all options, so they are set here in a copy of the composition.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    values, rest = list[str](), list[str]()
    for override in given:
        key = re.match(r"\+\+([^@/=]+)=", override)
        (values if key and key[1] not in groups else rest).append(override)
    if not any(re.match(r"~|\+\+|\+[^@]*=", override) for override in rest):  # changes of keys, whose order counts
        changed = max(file.stat().st_mtime_ns for file in (*(ASSETS / "conf").rglob("*.yaml"), *recipes()))
        composed = deepcopy(_compose_with_hydra(ASSETS, name, text, tuple(rest), changed))
        with _plain_interpolations(), suppress(OmegaConfBaseException, ValueError, RecursionError):  # Hydra words it
            for value in map(read_override, values):
                OmegaConf.update(composed, value.key_or_group, value.value(), merge=True, force_add=True)
            return composed
    return _compose_with_hydra.__wrapped__(ASSETS, name, text, given)


@lru_cache(maxsize=32)
def _compose_with_hydra(assets: Path, name: str, text: str, overrides: Sequence[str], changed: int = 0) -> DictConfig:
    from think_as_locals.config.assets_source import compose

    _check_document(text)
    with _plain_interpolations():
        return compose(assets, text, [f"recipe={quoted(name)}", *overrides])


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


_CHOICES = {  # keys that choose an option of a group with another name, and what Hydra calls them
    r"rms\.[^.]+": "+rm@{key}",
    r"data\.mix\.[^.]+": "+data@{key}",
    r"eval\.sets\.[^.]+": "+data@{key}.data",
    r"sample\.data": "data@{key}",
    r"teacher|sample\.scorer": "rm@{key}",
    r"editor|sample\.policy": "policy@{key}",
}


def _as_overrides(text: str, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Translate an override for Hydra: choose an option of a group, or set any other key, which the schema checks."""
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
    choice = next((choice for pattern, choice in _CHOICES.items() if re.fullmatch(pattern, key)), key)
    options = groups.get(choice.lstrip("+").partition("@")[0])
    if options is None:
        # Hydra merges a mapping into the one that is there: emptied first, it is replaced.
        emptied = [f"++{key}=null"] if option.startswith("{") and not key.startswith(("+", "~")) else []
        return [*emptied, text if key.startswith(("+", "~")) else f"++{text}"]
    if option not in options:
        raise ConfigError(f"{key}={option}: no such option{nearest(option, options)}; available: {', '.join(options)}")
    how = [f"+eval/shared@{key}=set"] if key.startswith("eval.sets.") else []
    return [*how, f"{choice.format(key=key)}={option}"]


def literal(text: str) -> str:
    """Return a text as a recipe has to hold it: `${` stands for itself."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def quoted(text: str) -> str:
    """Quote a text for Hydra's override grammar, where a backslash is one unless a quote follows."""
    escaped = re.sub(r'(\\*)("|$)', lambda end: 2 * end[1] + ('\\"' if end[2] else ""), literal(text))
    return f'"{escaped}"'


@contextmanager
def _plain_interpolations() -> Iterator[None]:
    """Let interpolations refer to other values, up to `_MAX_INTERPOLATED`, and call `_RESOLVERS`; else ConfigError."""
    from omegaconf import Container, Node, OmegaConf
    from omegaconf.basecontainer import BaseContainer

    def refuse(*_: Any) -> Any:
        raise ConfigError(
            "an interpolation may refer to other keys (${run.name}) but call nothing: config.yaml would show what it "
            "read; in the shell, KEY=$NAME sets a key"
        )

    resolvers, resolve, referred = dict(BaseContainer._resolvers), Container._resolve_node_interpolation, 0

    def count(node: Any) -> None:
        nonlocal referred
        content = node._content if isinstance(node, Container) else node._value()
        referred += 1 + (len(content) // _LONG_TEXT if isinstance(content, str) else 0)
        if referred > _MAX_INTERPOLATED:
            raise ConfigError(
                f"interpolations expand to more than {_MAX_INTERPOLATED:,} values: write out those you need"
            )
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
    """Raise a ConfigError for Hydra's own keys, and for aliases that expand to a large or infinite document."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = _MAX_VALUES + 1  # until it is known: a node that contains itself is infinite
            parts = node.value if isinstance(node, yaml.SequenceNode | yaml.MappingNode) else ()
            inner = chain.from_iterable(part if isinstance(part, tuple) else (part,) for part in parts)
            text = len(node.value) // _LONG_TEXT if isinstance(node, yaml.ScalarNode) else 0
            sizes[id(node)] = min(1 + text + sum(map(size, inner)), _MAX_VALUES + 1)
        return sizes[id(node)]

    loader = yaml.SafeLoader(text)
    document = loader.get_single_node()
    if document is None:
        return
    if size(document) > _MAX_VALUES:
        raise ConfigError(f"its aliases expand to more than {_MAX_VALUES:,} values: write out those you need")
    values = loader.construct_document(document)
    chosen = values.get("defaults") if isinstance(values, dict) else None
    if chosen is not None and ("hydra" in values or "hydra/" in str(chosen) or "@package" in text):
        raise ConfigError("Hydra's own keys (hydra, hydra/..., @package) have no effect in a recipe: drop them")


def _contains_large_int(value: Any) -> bool:
    """Return whether a value is or contains an integer of more than 64 bits, which Python may be unable to print."""
    if isinstance(value, dict | list):
        return any(map(_contains_large_int, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and value.bit_length() > 63


def reason(error: Exception) -> str:
    """Return an error's message on one line, without the folders that Hydra searched."""
    message = re.sub(
        rf"'{RECIPE}'|\"<(file|unicode string)>\"", "the recipe", str(error).partition("Config search path")[0]
    )
    return cut(" ".join(message.split())) or type(error).__name__


def nearest(name: object, known: Sequence[str]) -> str:
    """Return a suggestion for an unknown name: "; did you mean ...?", or nothing where no known name is similar."""
    near = get_close_matches(name, known, n=1) if isinstance(name, str) and len(name) <= _LONG_TEXT else ()
    return f"; did you mean {near[0]!r}?" if near else ""
