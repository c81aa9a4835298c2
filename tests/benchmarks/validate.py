"""How long `tal data validate` takes for 100,000 rows of CARB's schema, and whether it names every planted fault.

python tests/benchmarks/validate.py [ROWS]
"""

from __future__ import annotations

import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from babel import Locale

from think_as_locals.data.cards import cards, cultures

SUBSETS = ("cultural_commonsense", "cultural_value", "cultural_toxicity", "cultural_linguistic")
DEFECT_SHARE = 0.08  # of the rows have one planted fault

Row = dict[str, Any]
DEFECTS: dict[str, Callable[[Row, Row], Row | str]] = {
    "empty_prompt": lambda row, other: row | {"prompt": "  "},
    "missing_field": lambda row, other: {key: value for key, value in row.items() if key != "rejected"},
    "wrong_type": lambda row, other: row | {"chosen": {"text": row["chosen"][0]}},
    "identical_responses": lambda row, other: row | {"rejected": [*row["rejected"][:2], row["chosen"][0]]},
    "unknown_language": lambda row, other: row | {"language": "Klingonese"},
    "repeated_id": lambda row, other: (
        row | {"id": other["id"], "subset": other["subset"], "language": other["language"]}
    ),
    "run_on_turn": lambda row, other: row | {"chosen": [f"{row['chosen'][0]}assistant\n\n{row['chosen'][0]}"]},
    "count_mismatch": lambda row, other: row | {"num_rejected": 5},
    "not_json": lambda row, other: json.dumps(row, ensure_ascii=False)[:-9],
    "wrong_language": lambda row, other: row | {"chosen": [wrong_language_response(row)]},
}


def wrong_language_response(row: Row) -> str:
    """A response in English, or to an English prompt in German."""
    return text(random.Random(row["id"]), "de" if row["language"] == "English" else "en", 5)


def text(rng: random.Random, language: str, sentences: int) -> str:
    """Some of the culture cards' facts in a row."""
    return " ".join(rng.choice(list(rng.choice(cards()).facts.values()))[language] for _ in range(sentences))


def rows(count: int, rng: random.Random) -> Iterator[tuple[Row | str, str | None]]:
    """Rows, each with the defect that is planted in it."""
    names, places = Locale("en").languages, list(cultures().items())
    earlier: Row | None = None
    for number in range(count):
        culture, about = rng.choice(places)
        language = about["language"]
        question = rng.choice(cards()).question[language].replace("{place}", about["place"][language])
        row = {
            "id": f"q{number}",
            "language": names[language],
            "country": Locale("en").territories[culture],
            "prompt": f"{question} ({number})",
            "chosen": [text(rng, language, rng.randint(3, 12))],
            "chosen_model": "m0",
            "rejected": [text(rng, language, rng.randint(3, 12)) for _ in range(3)],
            "rejected_model": ["m1", "m2", "m3"],
            "num_correct": 1,
            "num_rejected": 3,
            "total_completions": 4,
            "source": "generated",
            "subset": rng.choice(SUBSETS),
            "additional_metadata": "{}",
            "category": "generated",
        }
        defect = rng.choice(list(DEFECTS)) if earlier and rng.random() < DEFECT_SHARE else None
        yield (DEFECTS[defect](row, earlier), defect) if defect and earlier else (row, None)
        earlier = earlier if defect else row


def main() -> None:
    """Write rows, validate them, compare what is named with what was planted."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        path, aside = Path(folder) / "carb.jsonl", Path(folder) / "aside.jsonl"
        planted: dict[int, str] = {}
        with path.open("w", encoding="utf-8") as file:
            for number, (row, defect) in enumerate(rows(count, random.Random(0)), 1):
                file.write((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n")
                if defect:
                    planted[number] = defect
        words = [
            "from think_as_locals.cli import main; main()",
            "data",
            "validate",
            str(path),
            "--quarantine",
            str(aside),
        ]
        start = time.monotonic()
        done = subprocess.run([sys.executable, "-c", *words], capture_output=True, text=True, check=False)
        seconds = time.monotonic() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = re.findall(rf"^{re.escape(str(path))}:(\d+): \w+: (\w+): ", done.stdout, re.MULTILINE)
        named = {(int(number), defect) for number, defect in found}
        missed = Counter(defect for number, defect in planted.items() if (number, defect) not in named)
        others = Counter(defect for number, defect in named if planted.get(number) != defect)
        cpu, memory = used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3
        size = f"{count:,} rows, {path.stat().st_size / 1e6:.0f} MB"
        print(f"{size}: {seconds:.1f} s ({cpu:.1f} s CPU, {memory:.0f} MB memory), status {done.returncode}")
        print(f"planted {len(planted):,}, not named {dict(missed)}, named besides {dict(others)}")
        print(done.stdout.splitlines()[-1], f"; {len(aside.read_text().splitlines()):,} lines in the quarantine")


if __name__ == "__main__":
    main()
