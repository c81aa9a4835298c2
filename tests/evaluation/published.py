"""Made-up items of CARB as it is published: no country in half of them, several countries of a language."""

from __future__ import annotations

from collections.abc import Collection

from items import make_item

from think_as_locals.types import Item

COUNTRIES = {
    "Arabic": ("ar", "SA", "IQ", "JO"),
    "Chinese": ("zh", "CN"),
    "English": ("en", "US", "GB"),
    "German": ("de", "DE"),
    "Japanese": ("ja", "JP"),
    "Korean": ("ko", "KR"),
    "Russian": ("ru", "RU"),
    "Spanish": ("es", "ES", "AR", "MX"),
    "Thai": ("th", "TH"),
    "Vietnamese": ("vi", "VN"),
}
"""Of each language its tag, and its countries."""
CELLS = [
    f"{language}/{domain}" for language in COUNTRIES for domain in ("commonsense", "value", "safety", "linguistic")
]


def published_items(missing: Collection[str] = ()) -> list[Item]:
    """Items of every cell but the missing ones: the n-th cell (of 40) has 1 + n % 3 of them."""
    found = []
    for n, cell in enumerate(CELLS):
        language, domain = cell.split("/")
        tag, *countries = COUNTRIES[language]
        for i in range(0 if cell in missing else 1 + n % 3):
            known = {"id": f"{domain}_{n}_{i}", "group": f"{domain}_{n}_{i}", "domain": domain, "source": "carb"}
            asked = {"prompt": f"What is customary in case {n}.{i}?", "best": (n + i) % 4, "language": tag}
            responses = tuple(f"**{language}** answer {n}.{i}.{j}. " + "In detail. " * (3 + j) for j in range(4))
            culture = countries[i % len(countries)] if domain in ("commonsense", "value") else None
            found.append(make_item(responses=responses, culture=culture, **known, **asked))
    return found
