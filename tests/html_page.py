"""What an HTML page says."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path


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
