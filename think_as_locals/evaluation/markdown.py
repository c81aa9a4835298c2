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
_SLOTS_NOTE = (
    "How much more often each slot is chosen than the best response lies in it, in points; of items that were shown in "
    "several orders, how often the choice stays the same, and is right in all."
)
_SURE_NOTE = (
    "How far margins can be trusted: the calibration error over ten bins, beside what a calibrated judge would show on "
    "as many judgements, and the Brier score, beside that of one that always states this accuracy."
)
_MODELS = ("rank", "reward model", "macro", "by items", "n", "flip sets", "unparsable", "ties", "protocol")
_SLOTS = ("reward model", "n", "slots", "same choice", "right in every order", "n")
_SURE = ("reward model", "n", "confidence", "accuracy", "error", "calibrated", "Brier", "constant")
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
        if judges := [model for model in board["models"] if model["slot_bias"]]:
            parts += [_SLOTS_NOTE, table(_SLOTS, map(_slots, judges))]
        if sure := [model for model in board["models"] if model["calibration"]["n"]]:
            parts += [_SURE_NOTE, table(_SURE, map(_sure, sure))]
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


def _slots(model: dict[str, Any]) -> list[str]:
    bias, orders = model["slot_bias"], model["order_consistency"]
    slots = [f"{label} {_signed(part['bias'], part['ci95'])}" for label, part in bias.items()]
    same = [_percent(orders, "consistent"), _percent(orders["all_right"])] if orders["n"] else ["", ""]
    n = max(part["n"] for part in bias.values())
    return [text(model["name"]), f"{n}", ", ".join(slots), *same, f"{orders['n']}"]


def _sure(model: dict[str, Any]) -> list[str]:
    found = model["calibration"]
    low, high = found["brier_ci95"]
    return [
        text(model["name"]),
        str(found["n"]),
        f"{100 * found['confidence']:.1f}",
        _percent(found),
        _percent({"ece": found["ece"], "ci95": found["ece_ci95"]}, "ece"),
        f"{100 * found['ece_calibrated']:.1f}",
        f"{found['brier']:.3f} [{low:.3f}, {high:.3f}]",
        f"{found['brier_constant']:.3f}",
    ]


def _flips(part: dict[str, Any]) -> str:
    return f"{_percent(part)}, n {part['n']}" if part["n"] else "none"


def _percent(part: dict[str, Any], key: str = "accuracy") -> str:
    low, high = (100 * end for end in part["ci95"])
    return f"{100 * part[key]:.1f} [{low:.1f}, {high:.1f}]"


def _points(paired: dict[str, Any]) -> tuple[str, str]:
    found, p = paired["difference"], paired["p_holm"]
    return _signed(found["difference"], found["ci95"]), "< 0.001" if p < 0.001 else f"{p:.3f}"


def _signed(value: float, ci95: Sequence[float]) -> str:
    low, high = (100 * end for end in ci95)
    return f"{100 * value:+.1f} [{low:+.1f}, {high:+.1f}]"
