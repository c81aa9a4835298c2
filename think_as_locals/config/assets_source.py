"""A Hydra config source for conf/ and recipes/ that parses each file once, not for every composition."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from pathlib import Path

from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, ListConfig, OmegaConf


class AssetsSource(ConfigSource):
    """The options in conf/, and recipes as recipes/NAME, whose keys are at the top."""

    @staticmethod
    def scheme() -> str:
        """Return what addresses of this source begin with."""
        return "assets"

    def available(self) -> bool:
        """Return whether there are such files."""
        return self.is_group("")

    def is_group(self, config_path: str) -> bool:
        """Return whether a path is a folder."""
        return self._file(config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        """Return whether a path is an option."""
        return self._file(self._normalize_file_name(config_path)).is_file()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the names of what is in a folder."""
        found: list[str] = []
        for entry in self._file(config_path).iterdir():
            self._list_add_result(found, f"{config_path}/{entry.name}", entry.name, results_filter)
        return sorted(found)

    def load_config(self, config_path: str) -> ConfigResult:
        """Return an option in a copy, which Hydra changes."""
        file = self._file(self._normalize_file_name(config_path))
        header, config = _parsed(file, file.stat().st_mtime_ns)
        if config_path.startswith("recipes/"):
            header = {"package": "_global_"}
        return ConfigResult(self.provider, self.full_path(), deepcopy(config), {**header})

    def _file(self, config_path: str) -> Path:
        return Path(self.path) / ("" if config_path.startswith("recipes") else "conf") / config_path


@lru_cache(maxsize=512)
def _parsed(file: Path, _: int) -> tuple[dict[str, str | None], DictConfig | ListConfig]:
    """Return what a file sets, and the header that says where; anew if it has changed since."""
    text = file.read_text(encoding="utf-8")
    return ConfigSource._get_header_dict(text), OmegaConf.load(file)


Plugins.instance().register(AssetsSource)
