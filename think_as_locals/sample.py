"""Sample candidates from a policy: questions of a task -> samples -> their quality -> a file."""

from __future__ import annotations

from collections.abc import Sequence

from think_as_locals.config.schema import SampleConfig
from think_as_locals.evaluation.candidates import draw, table
from think_as_locals.evaluation.tasks import Question
from think_as_locals.runtime.files import read_json
from think_as_locals.runtime.output import print_result, progress_bar, progress_console, quiet_transformers
from think_as_locals.runtime.run_folder import RunFolder


def run(config: SampleConfig, questions: Sequence[Question], folder: RunFolder) -> None:
    """Sample candidates and write them to the folder's `candidates.jsonl`, as `eval.candidates` reads them."""
    quiet_transformers()
    console = progress_console()
    console.print(f"{config.run.name}: {len(questions):,} prompts ({config.sample.task})", highlight=False)
    with progress_bar(console) as bar:
        draw(config.sample, config.seed, questions, folder, bar)
    print_result(table(read_json(folder.candidates_summary)).terminal())
    print(f"candidates  {folder.candidates}")
