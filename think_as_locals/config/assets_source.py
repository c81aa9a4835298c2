"""Composition by Hydra from a recipe's text, conf/ and recipes/, of which each file is parsed once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache
from io import StringIO
from pathlib import Path

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.structured_config_source import StructuredConfigSource
from hydra.core.object_type import ObjectType
from hydra.core.utils import setup_globals
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import RunMode
from hydra.version import setbase
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from think_as_locals.config.compose import RECIPE

_HYDRA_SETTINGS = [
    f"hydra/{group}"
    for group in ("output", "launcher", "sweeper", "help", "hydra_help", "hydra_logging", "job_logging", "env")
]
"""Groups of Hydra's own options that we remove; Hydra loads them first, so they must exist, as empty options."""

setup_globals()  # registers the resolver of `${now:...}`


def compose(assets: Path, text: str, overrides: Sequence[str]) -> DictConfig:
    """Compose a recipe from conf/ and recipes/ alone: what is in its folder, or in Hydra's, is not searched."""
    setbase("1.3")
    loader = ConfigLoaderImpl(ConfigSearchPathImpl())
    loader.repository.sources = [_AssetsSource(assets, text), StructuredConfigSource("schema", "structured://")]
    removals = [f"~{group}" for group in _HYDRA_SETTINGS]
    composed = loader.load_configuration(RECIPE, [*removals, *overrides], RunMode.RUN, from_shell=False)
    with open_dict(composed):
        del composed["hydra"]
    return composed


class _AssetsSource(ConfigSource):
    """The recipe, the options in conf/, and ours in recipes/ as options `recipes/NAME` that set top-level keys."""

    def __init__(self, assets: Path, recipe: str) -> None:
        super().__init__("main", f"{self.scheme()}://{assets}")
        self._recipe = recipe

    @staticmethod
    def scheme() -> str:
        """Return what addresses of this source begin with."""
        return "assets"

    def available(self) -> bool:
        """Return whether there are such files."""
        return self.is_group("")

    def is_group(self, config_path: str) -> bool:
        """Return whether a path is a folder."""
        return config_path in _HYDRA_SETTINGS or self._file(config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        """Return whether a path is the recipe or an option."""
        own = config_path == RECIPE or config_path.rpartition("/")[0] in _HYDRA_SETTINGS
        return own or self._file(self._normalize_file_name(config_path)).is_file()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the names of what is in a folder."""
        found: list[str] = []
        for entry in self._file(config_path).iterdir():
            self._list_add_result(found, f"{config_path}/{entry.name}", entry.name, results_filter)
        return sorted(found)

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the recipe, or an option in a copy: Hydra changes it."""
        if config_path == RECIPE:
            header, config = self._get_header_dict(self._recipe), OmegaConf.load(StringIO(self._recipe))
        elif config_path.startswith("hydra/"):
            header, config = self._get_header_dict(""), OmegaConf.create()
        else:
            file = self._file(self._normalize_file_name(config_path))
            header, parsed = _parsed(file, file.stat().st_mtime_ns)
            config = deepcopy(parsed)
        if config_path.startswith("recipes/"):
            header = {"package": "_global_"}
        return ConfigResult(self.provider, self.full_path(), config, {**header})

    def _file(self, config_path: str) -> Path:
        return Path(self.path) / ("" if config_path.startswith("recipes") else "conf") / config_path


@lru_cache(maxsize=512)
def _parsed(file: Path, _: int) -> tuple[dict[str, str | None], DictConfig | ListConfig]:
    """Return what a file sets, and the header that says where; anew if it has changed since."""
    text = file.read_text(encoding="utf-8")
    return ConfigSource._get_header_dict(text), OmegaConf.load(file)
