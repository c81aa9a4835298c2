"""What schemathesis finds in `tal serve`, over HTTP, with a small judge: python tests/benchmarks/fuzz_server.py 10000.

The judge is random and writes a few tokens, so nearly all of the time goes into requests. Requests are counted where
they arrive. Ends with status 1 where schemathesis finds a fault or any answer is 5xx.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from reward_models.tiny import write_language_model
from served_app import serving

from think_as_locals.reward_models.load import load_judge
from think_as_locals.serving.app import create_app
from think_as_locals.serving.server import load_server

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance,unsupported_method,allow_header_conformance,negative_data_rejection"
)
SETTINGS = [
    "limits.requests_per_minute=100000000",
    "limits.responses=4",
    "score.orders=1",
    "judge.prompt=compact",
    "judge.max_completion_length=1",
    "window_s=0.0",
]


class CountingApp:
    """An app that counts what it answers, as `METHOD /path status`."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.answers: Counter[str] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.answers[f"{scope['method']} {scope['path']} {message['status']}"] += 1
            await send(message)

        await self._app(scope, receive, counted)


def fuzz(url: str, examples: int, seed: int, folder: str) -> int:
    """One run of schemathesis, which leaves files in a folder; its exit status."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", CHECKS]
    command += ["--phases", "coverage,fuzzing", "--max-examples", str(examples), "--seed", str(seed)]
    command += ["--generation-database", "none", "--suppress-health-check", "all", "--continue-on-failure"]
    hooks = {"SCHEMATHESIS_HOOKS": "fuzz_hooks", "PYTHONPATH": str(Path(__file__).resolve().parent)}
    return subprocess.run(command, cwd=folder, env={**os.environ, **hooks}, check=False).returncode


def summary(answers: Counter[str]) -> dict[str, Any]:
    """How many requests were answered, and how."""
    failed = sum(count for name, count in answers.items() if int(name.split()[-1]) >= 500)
    return {"requests": answers.total(), "5xx": failed, "answers": dict(sorted(answers.items()))}


def main() -> None:
    """Fuzz until so many requests were answered; print after each run what was answered until then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requests", type=int, help="how many requests at least")
    parser.add_argument("--examples", type=int, default=500, help="of each operation in a run of schemathesis")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; each further one has the next")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = load_server(write_language_model(Path(folder), seed=0), SETTINGS)
        app, statuses = CountingApp(create_app(load_judge(config.judge, config.seed), config, key=None)), []
        with serving(app) as url:
            while app.answers.total() < arguments.requests and not any(statuses):
                statuses.append(fuzz(url, arguments.examples, arguments.seed + len(statuses), folder))
                print(json.dumps(summary(app.answers), indent=2), flush=True)
    sys.exit(1 if summary(app.answers)["5xx"] or any(statuses) else 0)


if __name__ == "__main__":
    main()
