"""Helpers to parse and check HTML pages."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

_SVG = re.compile(r'<svg[^>]* viewBox="0 0 ([\d.]+) ([\d.]+)"(.*?)</svg>', re.DOTALL)
_TEXT = re.compile(r"<text([^>]*)>([^<]*)</text>")
Box = tuple[float, float, float, float]


def check_tables(source: str) -> None:
    """Every table stands in an element that scrolls sideways, is named and is reached by keyboard."""
    before = re.findall(r"(<[^<]*>)\s*<table", source)
    assert len(before) == source.count("<table") > 0
    assert all(re.match(r'<div class="scroll" role="region" aria-label="[^"]+" tabindex="0">', tag) for tag in before)


def check_texts(source: str, size: float = 19) -> None:
    """Every text of a drawing is within it and on no other, at about the widths that letters of `size` have.

    Narrow pages are read in letters of 19: page.css.
    """
    for width, height, drawn in _SVG.findall(source):
        boxes = {}
        for number, (attrs, text) in enumerate(_TEXT.findall(drawn)):
            box = _box(attrs, html.unescape(text), size)
            assert min(box) >= 0, (text, box)
            assert (box[2] <= float(width), box[3] <= float(height)) == (True, True), (text, box)
            boxes[number, text] = box
        for (one, a), (other, b) in combinations(boxes.items(), 2):
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (one, other)


def _box(attrs: str, text: str, size: float) -> Box:
    """Left, top, right and bottom of a text, turned by a quarter where it has a transform."""
    found = dict(re.findall(r'([\w-]+)="([^"]*)"', attrs))
    size = float(found.get("font-size", size))
    width = 0.58 * size * len(text)
    anchor = found.get("text-anchor", found.get("class", ""))
    before = {"middle": width / 2, "end": width}.get(anchor, 0.0)
    if "transform" in found:
        x, y = map(float, re.findall(r"[\d.]+", found["transform"])[:2])
        return x - 0.8 * size, y - width / 2, x + 0.2 * size, y + width / 2
    x, y = float(found["x"]) - before, float(found["y"])
    return x, y - 0.8 * size, x + width, y + 0.2 * size


class Page(HTMLParser):
    """Tags, texts and the cells of every table."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.rows: list[str] = []
        self.feed(self.source)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("style", "script"):
            return
        self.text += f" {data}"
        if self.rows:
            self.rows[-1] = " ".join(f"{self.rows[-1]} {data}".split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    def row(self, start: str) -> str:
        return next(row for row in self.rows if row.startswith(start))
