"""Compose a recipe, conf/ and overrides into plain values with Hydra."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml

from think_as_locals.types import ConfigError, cut, shown

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

ASSETS = next(path for path in (Path(__file__).parents[1] / "_assets", Path(__file__).parents[2]) if path.is_dir())
"""The folder of conf/, recipes/ and launch/: beside the package in a checkout, inside it in a wheel."""
_RECIPE = "a_recipe"  # what Hydra calls the recipe that is composed


def compose_recipe(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Compose a recipe with conf/ and overrides; its `defaults` begin with a root of conf/ or a recipe of ours."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    recipe = find_recipe(path)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", recipe.stem).strip("._-")[:60] or "recipe"  # for the name of its runs
    groups = group_options()
    given = [override for text in overrides for override in _as_overrides(text, groups)]
    search = [quoted(f"file://{folder}") for folder in (ASSETS / "conf", ASSETS)]  # ASSETS for /recipes/NAME
    words = [f"hydra.searchpath=[{','.join(search)}]", f"recipe={quoted(stem)}", *given]
    OmegaConf.clear_resolver("oc.env")  # config.yaml, which others see, would show what it read
    try:
        # A copy alone in a folder: what lies beside a recipe is not taken for an option of conf/.
        with TemporaryDirectory() as folder, initialize_config_dir(folder, version_base="1.3"):
            Path(folder, f"{_RECIPE}.yaml").write_bytes(recipe.read_bytes())
            composed = compose(_RECIPE, words)
        unset = sorted(OmegaConf.missing_keys(composed))
        values: Any = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, OSError, ValueError) as error:
        message, remedy = reason(error), ""
        if "Could not override 'recipe'" in message:
            message = (
                "not a recipe, expected YAML whose `defaults` begin with a root of conf/, such as /config, or with"
            )
            remedy = " /recipes/NAME: tal recipes NAME prints one to copy"
        elif lacking := re.search(r"Could not load 'recipes/(.*)'", message):
            known = [each.stem for each in recipes()]
            remedy = f"{nearest(lacking[1], known)}; recipes that come with the package: {', '.join(known)}"
        raise ConfigError(f"{recipe}: {message}{remedy}") from error
    if unset:
        raise ConfigError(f"{recipe}: no default for {', '.join(unset)}: set it, e.g. {unset[0]}=...")
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
        if candidate.is_file():
            return candidate.resolve()
    known = [recipe.stem for recipe in recipes()]
    near = nearest(path.stem, known) or nearest(path.name, [each.name for each in path.parent.glob("*.yaml")])
    near = near or f"; those that come with the package: {', '.join(known)}"
    raise ConfigError(f"{path}: no such file{near} (tal recipes says what each does)")


def read_override(text: str) -> Override:
    """Parse an override with Hydra's grammar."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_overrides([text])[0]
    except (HydraException, ValueError) as error:
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


def reason(error: Exception) -> str:
    """Return an error's message on one line, without the folders that Hydra searched."""
    message = str(error).partition("Config search path")[0]
    message = re.sub(rf"'{_RECIPE}'|\"[^\"]*{_RECIPE}\.yaml\"", "the recipe", message)
    return cut(" ".join(message.split()), 500) or type(error).__name__


def nearest(name: object, known: Sequence[str]) -> str:
    """Return a suggestion for an unknown name: "; did you mean ...?", or nothing where no known name is similar."""
    near = get_close_matches(name, known, n=1) if isinstance(name, str) and len(name) <= 100 else ()
    return f"; did you mean {near[0]!r}?" if near else ""
