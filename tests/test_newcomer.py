"""A new user's first run: a custom reward in ten lines, and custom items in a JSONL file."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import yaml
from conftest import QUICK, SMALL, Tal

from think_as_locals import ConfigError, Judge
from think_as_locals.run import start

pytestmark = pytest.mark.slow

REWARD = '''
"""Shares of a judgement's words that are the culture's own."""
from think_as_locals import Item, Judgement


def local_words(judgement: Judgement, item: Item) -> float:
    """How many words of the best response the judge takes up, as a share."""
    words = set(item.responses[item.best].lower().split())
    return len(words & set(judgement.completion.lower().split())) / len(words)
'''

FACTS = {
    "breakfast": {"TH": "Rice porridge.", "JP": "Grilled fish and miso soup.", "ES": "Toast with tomato and oil."},
    "greeting": {"TH": "Palms pressed together.", "JP": "A bow from the waist.", "ES": "A kiss on each cheek."},
    "sweet": {"TH": "Sticky rice with mango.", "JP": "A bean paste bun.", "ES": "Fried dough with chocolate."},
    "new_year": {"TH": "Splashing water.", "JP": "Hearing a bell ring.", "ES": "Eating twelve grapes."},
}


def write_items(path: Path, *, times: int = 1, **changes: object) -> None:
    """An item for each question and culture, `times` over; the wrong responses are what holds elsewhere."""
    rows = [
        {
            "id": f"{name}-{culture}",
            "prompt": f"What is typical for {name.replace('_', ' ')} there?",
            "responses": list(facts.values()),
            "best": list(facts).index(culture),
            "culture": culture,
            "language": "en",
            "domain": "commonsense",
            "group": name,
            "source": "mine",
            "origins": list(facts),
        }
        | changes
        for time in range(times)
        for group, facts in FACTS.items()
        for name in [f"{group}_{time}" if time else group]
        for culture in facts
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_quick_start_trains_with_custom_reward_and_items(tmp_path: Path, tal: Tal) -> None:
    assert len(REWARD.strip().splitlines()) <= 10
    (tmp_path / "own_rewards.py").write_text(REWARD.lstrip(), encoding="utf-8")
    write_items(tmp_path / "mine.jsonl")
    own = f"{tmp_path}/own_rewards.py:local_words"
    overrides = [
        *[word for word in (*SMALL, *QUICK) if not word.startswith("data.")],
        *["data=jsonl", f"data.path={tmp_path}/mine.jsonl", f"run.dir={tmp_path}", "run.name=mine"],
        *[f"reward.own.local_words={own}", "reward.weights.local_words=0.5"],
    ]
    done = tal("run", "recipes/quickstart.yaml", *overrides)
    assert done.status == 0, done.out + done.err
    run = tmp_path / "mine"
    assert Judge.load(str(run / "model"))
    assert yaml.safe_load((run / "config.yaml").read_text())["reward"]["own"] == {"local_words": own}
    rows = [row for path in run.glob("completions/*.parquet") for row in parquet.read_table(path).to_pylist()]
    assert len(rows) == 2 * 16
    for row in rows:
        group, _, culture = row["id"].rpartition("-")
        words, written = (set(text.lower().split()) for text in (FACTS[group][culture], row["completion"]))
        assert row["reward/local_words"] == pytest.approx(len(words & written) / len(words))
        parts = [row[f"reward/{name}"] for name in ("correctness", "structure", "local_words")]
        assert row["reward"] == pytest.approx(parts[0] + 0.2 * parts[1] + 0.5 * parts[2])
    logs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    mean = sum(log["rewards/local_words/mean"] for log in logs if "reward" in log) / 2
    assert mean == pytest.approx(sum(row["reward/local_words"] for row in rows) / len(rows), abs=1e-6)

    (tmp_path / "own_rewards.py").write_text(REWARD.replace("len(words)", "7"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"reward\.own\.local_words: .* has changed since this run was started"):
        start("recipes/quickstart.yaml", [*overrides, "run.resume=auto"])
    with pytest.raises(ConfigError, match="started with another reward"):
        start("recipes/quickstart.yaml", [*overrides, "run.resume=auto", "reward.weights.local_words=0.6"])
