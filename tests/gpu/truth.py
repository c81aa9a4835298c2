"""Checks that this machine suits Think-as-Locals and that the guides' claims hold on it: `make gpu`.

Prints a table of claims, each with its limit and what was measured, and rewrites truth.json after every check. A check
runs in a process of its own with a deadline, so that one that hangs or runs out of memory costs its own rows only.
Without a GPU everything that needs none runs with toy models. The status is 1 where a claim was refuted or a check
failed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[1] / "benchmarks"))

import psutil
from gpu.checks import CHECKS, MARK, OTHER_GPUS, Check, Claim, Scale
from rich.console import Console
from rich.table import Table
from warm import TRAINING, VLLM, make_warm_python

from think_as_locals.runtime.files import write_json
from think_as_locals.runtime.gpus import gpus, num_gpus
from think_as_locals.runtime.run_folder import environment

ROOT = Path(__file__).absolute().parents[2]
Verdict = Literal["HOLDS", "REFUTED", "NOT RUN"]
COLOURS: dict[Verdict, str] = {"HOLDS": "green", "REFUTED": "red", "NOT RUN": "yellow"}
MIN_SECONDS = 10.0  # a check that has less than this is not started
ON_TOYS = "toy models say nothing about it"


@dataclass(frozen=True, slots=True)
class Row:
    """One claim, as far as it was measured."""

    check: str
    claim: str
    limit: str
    verdict: Verdict
    value: float | None = None
    measured: str = ""
    why: str = ""  # it was not run
    failed: bool = False  # it should have been


@dataclass(frozen=True, slots=True)
class Ended:
    """How the process of a check ended: what it reported, and the error or deadline that cut it short."""

    reports: list[tuple[str, float, str]]
    fault: str
    seconds: float


def run_check(check: Check, scale: Scale, seconds: float) -> Ended:
    """Run a check in a process, which with all it has started is killed at its deadline or left none behind."""
    reports, log = scale.folder / f"{check.name}.jsonl", scale.folder / f"{check.name}.log"
    reports.unlink(missing_ok=True)
    mark = f"{check.name}-{os.getpid()}"
    words = [
        os.environ.get("PYTHON_EXEC", sys.executable),
        "tests/gpu/truth.py",
        "--one",
        check.name,
        "--work",
        str(scale.folder),
    ]
    began, fault = time.monotonic(), ""
    with log.open("w") as out:
        process = subprocess.Popen(
            [*words, *(["--toy"] if scale.toy else [])],
            cwd=ROOT,
            env={**os.environ, **gpu_environment(), MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            if process.wait(seconds) != 0:
                fault = f"ended with status {process.returncode}"
        except subprocess.TimeoutExpired:
            fault = f"was not done after {seconds:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kill(mark)
    found = [json.loads(line) for line in reports.read_text().splitlines()] if reports.is_file() else []
    errors = [line["error"] for line in found if "error" in line]
    values = [(line["key"], line["value"], line["details"]) for line in found if "key" in line]
    return Ended(values, errors[0] if errors else fault, time.monotonic() - began)


def gpu_environment() -> dict[str, str]:
    """What shows a check one GPU, and names the others: one process that sees several would spread its model."""
    first, _, others = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(num_gpus())))).partition(",")
    return {"CUDA_VISIBLE_DEVICES": first, OTHER_GPUS: others}


def kill(mark: str) -> None:
    """Kill the processes of a check, or of all checks: those whose mark ends so, whatever session they are in."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK, "").endswith(mark):
                process.kill()


def run_one(check: Check, scale: Scale) -> None:
    """Run a check in this process and append what it reports to a file."""
    with (scale.folder / f"{check.name}.jsonl").open("w") as file:

        def write(**line: Any) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        def report(key: str, value: float, details: str) -> None:
            write(key=key, value=float(value), details=details)

        try:
            import_module(f"gpu.{check.module}").RUN[check.name](scale, report)
        except Exception as error:  # any exception: it is the row's
            traceback.print_exc()
            write(error=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")
            raise SystemExit(1) from None


def rows(check: Check, ended: Ended, scale: Scale) -> list[Row]:
    """Return a row for each claim of a check that was run."""
    values = {key: (value, details) for key, value, details in ended.reports}
    return [_row(check, claim, values.get(claim.key), ended, scale) for claim in check.claims]


def _row(check: Check, claim: Claim, found: tuple[float, str] | None, ended: Ended, scale: Scale) -> Row:
    if found is None:
        why = ended.fault or "was not reported"
        return Row(check.name, claim.text, claim.bound, "NOT RUN", why=why, failed=True)
    value, details = found
    known = value if math.isfinite(value) else None  # JSON has no NaN
    measured = f"{'toy: ' if scale.toy else ''}{claim.number(value)}{f' ({details})' if details else ''}"
    verdict: Verdict = "HOLDS" if claim.holds(value) else "REFUTED"
    if scale.toy and claim.on_gpu:
        return Row(check.name, claim.text, claim.bound, "NOT RUN", known, measured, ON_TOYS)
    return Row(check.name, claim.text, claim.bound, verdict, known, measured)


def not_run_rows(check: Check, why: str) -> list[Row]:
    """Return the rows of a check that was not run."""
    return [Row(check.name, claim.text, claim.bound, "NOT RUN", why=why) for claim in check.claims]


class Truth:
    """The table, as far as it is known, and its file."""

    def __init__(self, checks: Sequence[Check], scale: Scale, out: Path) -> None:
        self._checks, self._scale, self._out = checks, scale, out
        self._rows: dict[str, list[Row]] = {}
        self._seconds: dict[str, float] = {}
        self._about = {
            "card": [name for name, _ in gpus()],
            "toy": scale.toy,
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            **environment(),
        }

    def add(self, check: Check, found: list[Row], seconds: float = 0.0) -> None:
        """Add the rows of a check, and write the file anew."""
        self._rows[check.name], self._seconds[check.name] = found, round(seconds, 1)
        write_json(self._out, {**self._about, "seconds": self._seconds, "rows": [asdict(row) for row in self.rows()]})

    def rows(self) -> list[Row]:
        """All rows so far, in the order of the checks."""
        return [row for check in self._checks for row in self._rows.get(check.name, [])]

    def table(self) -> Table:
        """The rows as a table."""
        title = f"{', '.join(self._about['card']) or 'no GPU: toy models'}"
        shown = Table(title=title, show_lines=True)
        for column in ("check", "claim", "limit", "measured", "verdict"):
            shown.add_column(column)
        for row in self.rows():
            why = f" ({row.why})" if row.why else ""
            verdict = f"[{COLOURS[row.verdict]}]{row.verdict}[/]{why}"
            shown.add_row(row.check, row.claim, row.limit, row.measured, verdict)
        return shown


def run_all(checks: Sequence[Check], scale: Scale, truth: Truth, budget: float, console: Console) -> None:
    """Run checks within a budget of seconds: on a GPU one after the other, on a CPU two at a time."""
    until, found_gpus = time.monotonic() + budget, 0 if scale.toy else num_gpus()
    runnable = []
    for check in checks:
        if why := check.lacks(found_gpus):
            truth.add(check, not_run_rows(check, why))
        else:
            runnable.append(check)

    def run(check: Check) -> tuple[Check, list[Row], float]:
        left = until - time.monotonic()
        if left < MIN_SECONDS:
            return check, not_run_rows(check, f"the budget of {budget:.0f} s is spent"), 0.0
        ended = run_check(check, scale, min(check.seconds, left))
        return check, rows(check, ended, scale), ended.seconds

    pool = ThreadPoolExecutor(2 if scale.toy else 1)
    try:
        for done in as_completed([pool.submit(run, check) for check in runnable]):
            check, found, seconds = done.result()
            truth.add(check, found, seconds)
            console.print(f"{check.name}: {', '.join(row.verdict for row in found)} ({seconds:.0f} s)", highlight=False)
    except BaseException:  # Ctrl-C, SIGTERM: no check outlives this process
        pool.shutdown(wait=False, cancel_futures=True)
        kill(f"-{os.getpid()}")
        raise


def main() -> int:
    """Run the checks that are asked for; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [check.name for check in CHECKS]
    parser.add_argument("--budget", type=float, default=540, help="seconds for all checks (540)")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="CHECK", help="run only these")
    parser.add_argument("--list", action="store_true", help="list checks and claims, run none")
    parser.add_argument("--toy", action="store_true", help="use toy models on the CPU, although there is a GPU")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu/truth.json"), help="where results go")
    parser.add_argument("--work", type=Path, help="folder for models and logs, which stays; none: a temporary one")
    parser.add_argument("--one", nargs="+", choices=names, help="run these in this process, for their reports alone")
    arguments = parser.parse_args()
    measured = json.loads(Path(__file__).with_name("truth.json").read_text())["seconds"]
    # Those first that no GPU has measured yet: the budget may not be enough for all.
    chosen = sorted((check for check in CHECKS if check.name in arguments.only), key=lambda each: each.name in measured)
    if arguments.list:
        for check in chosen:
            print(f"{check.name}, needs {', '.join(check.needs) or 'nothing'}")
            print(*(f"    {claim.text}: {claim.bound}" for claim in check.claims), sep="\n")
        return 0
    if arguments.one:
        for check in CHECKS:
            if check.name in arguments.one:
                run_one(check, Scale(arguments.toy, arguments.work))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    toy = arguments.toy or not num_gpus()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 160)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.work or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if toy:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
            if "PYTHON_EXEC" not in os.environ:  # checks of toys are over sooner than their imports
                modules = [name for name in (*TRAINING, *VLLM) if find_spec(name.partition(".")[0])]
                make_warm_python(modules, sys.executable, Path(temporary))
                os.environ["PYTHON_EXEC"] = f"{temporary}/python"
        truth = Truth(chosen, scale := Scale(toy, folder), arguments.out)
        run_all(chosen, scale, truth, arguments.budget, console)
        for name in dict.fromkeys(row.check for row in truth.rows() if row.failed):
            log = (folder / f"{name}.log").read_text(errors="replace")
            console.print(f"\nthe end of the output of {name}:\n{log[-2000:]}", markup=False, highlight=False)
        console.print(truth.table(), f"{arguments.out}")
    return int(any(row.verdict == "REFUTED" or row.failed for row in truth.rows()))


if __name__ == "__main__":
    sys.exit(main())
