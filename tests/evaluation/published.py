"""Made-up rows in the shape in which CARB is published: no country in half of them, several countries of a language."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from data.tables import a_row

from think_as_locals.data.rows import Outcome
from think_as_locals.data.sources import carb
from think_as_locals.types import Item

COUNTRIES = {
    "Arabic": ("Saudi Arabia", "Iraq", "Jordan"),
    "Chinese": ("China",),
    "English": ("United States", "United Kingdom"),
    "German": ("Germany",),
    "Japanese": ("Japan",),
    "Korean": ("South Korea",),
    "Russian": ("Russia",),
    "Spanish": ("Spain", "Argentina", "Mexico"),
    "Thai": ("Thailand",),
    "Vietnamese": ("Vietnam",),
}
SUBSETS = {"commonsense": "cultural_atlas", "value": "cultural_value", "toxicity": "RTP_LX", "linguistic": "cultural_l"}
DOMAINS = {"commonsense": "commonsense", "value": "value", "toxicity": "safety", "linguistic": "linguistic"}
CELLS = [f"{language}/{domain}" for language in COUNTRIES for domain in DOMAINS.values()]


def published_rows(missing: Collection[str] = ()) -> list[dict[str, Any]]:
    """Rows of every cell but the missing ones: the n-th cell (of 40) has 1 + n % 3 of them."""
    rows = []
    for n, cell in enumerate(CELLS):
        language, domain = cell.split("/")
        subset = next(name for name, known in DOMAINS.items() if known == domain)
        for i in range(0 if cell in missing else 1 + n % 3):
            countries = COUNTRIES[language]
            answers = [f"**{language}** answer {n}.{i}.{j}. " + "In detail. " * (3 + j) for j in range(4)]
            rows.append(
                {
                    "id": f"{SUBSETS[subset]}_{10 * n + i}",
                    "language": language,
                    "country": countries[i % len(countries)] if domain in ("commonsense", "value") else None,
                    "prompt": f"What is customary in case {n}.{i}?",
                    "chosen": [answers[(n + i) % 4]],
                    "rejected": [answer for answer in answers if answer != answers[(n + i) % 4]],
                    "subset": f"cultural_{subset}",
                    "chosen_model": ["human_to_GPT-4_translation"],
                    "additional_metadata": json.dumps({"culture": language, "url": "https://example.org"}),
                }
            )
    return rows


def published_items(missing: Collection[str] = ()) -> list[Item]:
    """The items that CARB's source makes of such rows."""
    return [item for row in published_rows(missing) for item in Outcome.of(a_row(row), carb.items).items]
