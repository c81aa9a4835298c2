"""README.md and the guides of the folders, parsed into commands, Python and other code."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from conftest import ROOT
from markdown_it import MarkdownIt

FOLDERS = ("conf", "recipes", "launch", "tests/*", "think_as_locals/*", "think_as_locals/data/sources")
DOCUMENTS = [ROOT / "README.md", *sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/README.md"))]
TEXT = "\n\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)

_TOKENS = MarkdownIt("commonmark").enable("table").parse(TEXT)
_PROGRAMS = ("tal", "accelerate", "torchrun", "make", "pip", "python", "sbatch", "inspect", "hf", "curl")
_OPTIONAL = re.compile(r" \[([^]\"{]+)\]")  # and no list in JSON


@dataclass(frozen=True, slots=True)
class Block:
    """Code on lines of its own; one that is indented has no language."""

    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed, and the remark behind it."""

    text: str
    remark: str

    def words(self, *, optional: bool = False) -> list[str]:
        """As a shell splits it, with or without what may be left out: ` [--strict]`, ` [key=value ...]`."""
        text = _OPTIONAL.sub(r" \1" if optional else "", self.text)
        return shlex.split(text.replace("key=value ...", "seed=3"))

    @property
    def settings(self) -> list[str]:
        """`key=value` of the remark."""
        return re.findall(r"\b[a-z_.]+=[\w./]+\b", self.remark)

    @property
    def options(self) -> list[str]:
        """`--option` of the remark."""
        return re.findall(r"--[a-z_-]+", self.remark)


def blocks() -> list[Block]:
    """All code on lines of its own."""
    kinds = ("fence", "code_block")
    found = [Block(token.info.strip(), token.content) for token in _TOKENS if token.type in kinds]
    return list(dict.fromkeys(found))


def spans() -> list[str]:
    """All code within sentences and tables."""
    return [child.content for token in _TOKENS for child in token.children or () if child.type == "code_inline"]


def commands() -> list[Command]:
    """Every command: of the blocks, of the remarks in them, and of the sentences, each once."""
    of_blocks = [line for block in blocks() if is_commands(block) for line in _lines(block.text)]
    in_remarks = [text for command in of_blocks for text in re.findall(r"`([^`]+)`|(pip .+)", command.remark)]
    others = [*spans(), *("".join(found) for found in in_remarks)]
    of_text = [Command(text, "") for text in others if " " in text and text.split()[0] in _PROGRAMS]
    return list({command.text: command for command in [*of_text, *of_blocks]}.values())


def is_commands(block: Block) -> bool:
    """Whether a block holds commands: judgements and sketches are indented as well."""
    first = block.text.split(maxsplit=1)[0]
    return block.language == "bash" or (
        block.language == "" and first in (*_PROGRAMS, "docker", "export", "launch/vllm_server.sh")
    )


def _lines(text: str) -> list[Command]:
    lines = (line.partition(" # ") for line in text.replace("\\\n", " ").splitlines())
    return [Command(command.strip(), remark) for command, _, remark in lines]
