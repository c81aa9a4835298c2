"""A leaderboard as markdown, in which nothing from outside means anything to markdown or HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

_MEANING = re.compile(r"[\\`*_{}\[\]()#+!|~$@]|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""The last three begin an address, which GitHub makes a link of without any sign around it."""

_NOTE = (
    "Per cent with 95 % intervals by question group. Macro: every cell of culture and domain counts the same. Ranks "
    "are as sharp as paired differences allow (p < {alpha:g}, Holm over the pairs); ● may be first. Rows without a "
    "rank are baselines on the same items."
)
_PAIRS_NOTE = (
    "Paired differences, better placed less worse placed, in points; p by question group, Holm over the pairs; "
    "smallest: the smallest true difference that these items would show with 80 % power."
)
_MODELS = ("rank", "reward model", "macro", "by items", "n", "flip sets", "unparsable", "ties", "protocol")
_PAIRS = ("better placed", "worse placed", "macro", "p", "by items", "p", "smallest", "flip sets", "p")


def text(value: str) -> str:
    r"""A text as markdown shows it, on one line.

    Example:
        >>> print(text("a|b <i>_c_"))
        a\|b &lt;i&gt;\_c\_
    """
    return _MEANING.sub(r"\\\g<0>", html.escape(" ".join(value.split()), quote=False))


def leaderboard_text(boards: Sequence[dict[str, Any]], alpha: float) -> str:
    """Boards, as `leaderboard.board` gives them, a table of models and one of pairs for each.

    Args:
        boards: One for each set of items.
        alpha: Below this p two reward models differ.
    """
    parts = ["# Leaderboard", _NOTE.format(alpha=alpha)]
    if len(boards) > 1:
        parts.append("Reward models over different items stand in tables of their own and are not compared.")
    for board in boards:
        parts.append(f"## {title(board)}: {board['n']} items")
        parts.append(table(_MODELS, [*map(_model, board["models"]), *map(_baseline, board["baselines"].items())]))
        if board["pairs"]:
            parts.append(_PAIRS_NOTE)
            parts.append(table(_PAIRS, map(_pair, board["pairs"])))
    return "\n\n".join(parts) + "\n"


def title(board: dict[str, Any]) -> str:
    """What a board is over, for a heading."""
    return text(f"{' / '.join(board['datasets'])}, split {' / '.join(board['splits'])}")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are markdown already."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def _model(model: dict[str, Any]) -> list[str]:
    low, high = model["ranks"]
    return [
        f"{low}" if low == high else f"{low}–{high}",
        text(model["name"]) + (" ●" if model["may_be_first"] else ""),
        _percent(model["macro"]),
        _percent(model["micro"]),
        str(model["micro"]["n"]),
        _flips(model["flips"]),
        f"{_percent(model['unparsable'], 'share')} of {model['unparsable']['n']}",
        f"{_percent(model['ties'], 'share')} of {model['ties']['n']}",
        text(model["protocol"]),
    ]


def _baseline(named: tuple[str, dict[str, Any]]) -> list[str]:
    name, on = named
    n = str(on["micro"]["n"])
    return ["", text(name), _percent(on["macro"]), _percent(on["micro"]), n, _flips(on["flips"]), "", "", ""]


def _pair(pair: dict[str, Any]) -> list[str]:
    smallest = pair["items"]["smallest"]
    flips = pair["flips"]
    return [
        text(pair["better"]),
        text(pair["worse"]),
        *_points(pair["macro"]),
        *_points(pair["items"]),
        "none" if smallest is None else f"{100 * smallest:.1f}",
        *(_points(flips) if flips else ("", "")),
    ]


def _flips(part: dict[str, Any]) -> str:
    return f"{_percent(part)}, n {part['n']}" if part["n"] else "none"


def _percent(part: dict[str, Any], key: str = "accuracy") -> str:
    low, high = (100 * end for end in part["ci95"])
    return f"{100 * part[key]:.1f} [{low:.1f}, {high:.1f}]"


def _points(paired: dict[str, Any]) -> tuple[str, str]:
    found, p = paired["difference"], paired["p_holm"]
    low, high = (100 * end for end in found["ci95"])
    shown = f"{100 * found['difference']:+.1f} [{low:+.1f}, {high:+.1f}]"
    return shown, "< 0.001" if p < 0.001 else f"{p:.3f}"
