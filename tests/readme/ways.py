"""How each kind of README command is run here: as much of it as this machine can, on small inputs."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from typing import Any

from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from conftest import ROOT, command, launch
from fastapi.testclient import TestClient
from hub.fake_hub import TOKEN, serving
from readme.parts import Command
from readme.reader import Reader
from reward_models.scripted import first
from reward_models.scripted import serving as serving_judge
from serving.judges import Longest, judge_of, settings
from test_edit import editing

from think_as_locals.config.checks import load_config
from think_as_locals.config.compose import compose_recipe
from think_as_locals.data.sources import jsonl
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.serving.app import create_app
from think_as_locals.serving.server import load_server
from think_as_locals.sweeps.sweep import JOBS

SMALL = ["eval.max_items=8", "eval.bootstrap_samples=50", "data.languages=[en]"]
"""Behind an evaluation's own words."""


def _trains(reader: Reader, typed: Command) -> None:
    _starts(reader, reader.words(typed, optional=True)[2:])


def _launches(reader: Reader, typed: Command) -> None:
    words = reader.words(typed)[2:] or [str(ROOT / "recipes" / "quickstart.yaml")]
    arguments = launch_command_parser().parse_args(words)
    if arguments.config_file:
        load_config_from_file(arguments.config_file)
    _starts(reader, [arguments.training_script, *arguments.training_script_args])


def _launches_by_name(reader: Reader, typed: Command) -> None:
    started: list[list[str]] = []
    reader.monkeypatch.setattr("os.execvp", lambda _, words: started.append(words))
    reader.types(typed)
    (words,) = started
    arguments = launch_command_parser().parse_args(words[2:])
    assert (arguments.module, arguments.training_script) == (True, "think_as_locals")
    if arguments.config_file:
        load_config_from_file(arguments.config_file)
    _starts(reader, arguments.training_script_args[1:])


def _starts(reader: Reader, words: list[str]) -> None:
    """Recipe, data, rewards and folder, up to the first step; or what is missing."""
    reached: list[RunFolder] = []
    for program in ("train", "steer", "evaluate"):
        reader.monkeypatch.setattr(f"think_as_locals.{program}.run", lambda *given, **_: reached.append(given[-1]))
    status, output = reader.tal("run", *words)
    if reached:
        assert (status, load_config(reached[0].config).run.name) == (0, reached[0].name)
        return
    assert (status, output.startswith("tal: this machine lacks what")) == (2, True), output
    assert re.search(r"a GPU|package vllm", output), output
    assert "data:" not in output


def _sweeps(reader: Reader, typed: Command) -> None:
    started: list[str] = []
    reader.monkeypatch.setattr("think_as_locals.sweeps.sweep.launch", lambda names, *_: started.extend(names))
    words = reader.words(typed)
    status, output = reader.tal(*words[1:])
    # Two values each, of each variant; none of the jobs is done.
    (recipe,) = (word for word in words if word.endswith(".yaml"))
    variants = compose_recipe(recipe)["variants"] or [recipe]
    assert (status, len(started)) == (1, len(variants) * 2 ** sum("," in word for word in words)), output
    for name in started:
        (frozen,) = reader.folder.glob(f"runs/*/{JOBS}/{name}/*.yaml")
        load_config(frozen)


def _measures(reader: Reader, typed: Command) -> None:
    small = SMALL[: 2 if "data.languages" in typed.text else 3]
    status, output = reader.tal(*reader.words(typed)[1:], *small)
    measured = {path.stem for path in reader.folder.glob("runs/carb-*/carb/*.json")}
    elsewhere = {"base"} if "Qwen" in typed.text else set()  # a model on the Hub: the others are measured without it
    assert measured | elsewhere == {"constant", *re.findall(r"rms\.(\w+)=", typed.text)}, output
    assert status == len(elsewhere), output


def _demonstrates(reader: Reader, typed: Command) -> None:
    words = reader.words(typed)[1:]
    right = {item.responses[item.best] for item in jsonl.read(reader.folder / "file.jsonl")}
    reader.monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    with serving_judge(lambda presented: next(i for i, text in enumerate(presented) if text in right)) as (url, _):
        status, output = reader.tal(*(word.replace("http://HOST:8000/v1", url) for word in words))
    assert status == 0, output
    assert list(reader.folder.glob("runs/*/demonstrations.jsonl"))


def _edits(reader: Reader, typed: Command) -> None:
    """Each text with a letter more: of some probes that is an edit."""
    reader.monkeypatch.setenv("OPENAI_API_KEY", "a-key")

    def longer(_number: int, _probe: str, shown: dict[str, Any]) -> str:
        texts = {
            name: [f"{t} x" for t in text] if isinstance(text, list) else f"{text} x" for name, text in shown.items()
        }
        return json.dumps(texts, ensure_ascii=False)

    with editing(longer) as (words, _):
        url = words[1].removeprefix("editor.url=")
        status, output = reader.tal(*(word.replace("http://HOST:8000/v1", url) for word in reader.words(typed)[1:]))
    assert status == 0, output
    assert (reader.folder / "runs" / "edited" / "edits.jsonl").is_file()


def _samples(reader: Reader, typed: Command) -> None:
    reader.monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    with serving_judge(first) as (url, _):
        words = [word.replace("http://HOST:8000/v1", url) for word in reader.words(typed)]
        status, output = reader.tal(*words[1:], "sample.data.max_items=8", "sample.num_candidates=2")
    assert status == 0, output
    assert list(reader.folder.glob("runs/*/candidates.jsonl"))


def _needs_gpus(reader: Reader, typed: Command) -> None:
    """test_sample.py runs it to its end."""
    status, output = reader.tal(*reader.words(typed)[1:])
    recipe = typed.words()[2].removeprefix("recipes/").removesuffix(".yaml")
    assert (status, output.startswith(f"tal: this machine lacks what {recipe} needs")) == (2, True), output
    assert "Qwen/Qwen2.5-7B-Instruct" in output
    assert "does not exist" not in output


def _judges(reader: Reader, typed: Command) -> None:
    status, output = reader.tal(*reader.words(typed)[1:])
    assert status == ("No verdict" in output), output
    assert re.search(r"^ *(Verdict: [A-H], your response|No verdict)", output, re.MULTILINE)


def _shows(reader: Reader, typed: Command) -> None:
    reader.types(typed)
    for path in re.findall(r"out[= ](\S+)", typed.text):
        assert (reader.folder / path).exists()


def _examines(reader: Reader, typed: Command) -> None:
    words = reader.words(typed)
    status, output = reader.tal(*words[1:])
    assert status == ("MISSING" in output)
    last = "format" if "--model" in words else "memory"
    assert {"versions", "GPU", "disk", "credentials", last} <= set(output.split())


def _starts_a_folder(reader: Reader, typed: Command) -> None:
    """test_init.py runs what it makes."""
    reader.types(typed)
    assert (reader.folder / "mine" / "judge.yaml").is_file()


def _enters(reader: Reader, typed: Command) -> None:
    """test_init.py types the whole block in its order."""
    assert reader.run("init", typed.words()[1]).status == 0
    assert (reader.folder / "mine").is_dir()


LOCAL = "http://127.0.0.1"


def _validates(reader: Reader, typed: Command) -> None:
    for optional in (False, True):
        reader.types(typed, optional=optional)


def _serves(reader: Reader, typed: Command) -> None:
    apps: list[Any] = []
    reader.monkeypatch.setattr("uvicorn.run", lambda app, **_: apps.append(app))
    reader.monkeypatch.setattr("signal.signal", lambda *_: None)
    reader.types(typed)
    assert TestClient(apps[0], LOCAL).get("/health").status_code == 200


def _asks(reader: Reader, typed: Command) -> None:
    _, url, *options = typed.words()
    given = dict(zip(options[::2], options[1::2], strict=True))
    host, _, route = url.partition("/")
    assert host == f"localhost:{load_server('a/judge').port}"
    with TestClient(create_app(judge_of(Longest()), settings(), None), LOCAL) as client:
        answer = client.post(f"/{route}", content=given["-d"], headers=dict([given["-H"].split(": ")]))
    assert [each["verdict"] for each in answer.json()["judgements"]] == [0]


def _pushes(reader: Reader, typed: Command) -> None:
    for name, value in {"HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
        reader.monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    reader.monkeypatch.setenv("HF_TOKEN", TOKEN)
    with serving() as hub:
        reader.monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        status, output = reader.tal(*reader.words(typed)[1:])
    if "--adapter" in typed.text:  # hub/test_files.py reads one
        assert (status, "this run trained without lora" in output) == (2, True), output
        return
    assert status == 0, output
    assert bool(hub.requests) == ("--dry-run" not in typed.text)
    assert all(repository.private and repository.files() for repository in hub.repositories.values())


def _makes(_: Reader, typed: Command) -> None:
    done = launch("make", "--dry-run", *typed.words()[1:])
    assert done.returncode == 0, done.stderr


def _installs(_: Reader, typed: Command) -> None:
    extras = re.findall(r"\[(.+?)\]", typed.text)[0].split(",")
    assert {*extras} <= {*tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]}


def _submits(_: Reader, typed: Command) -> None:
    """test_launch_scripts.py and test_soak.py run the scripts."""
    (script,) = (word for word in typed.words() if word.endswith(".sh"))
    subprocess.run(["bash", "-n", ROOT / script], check=True)


def _exports(_: Reader, typed: Command) -> None:
    done = launch("bash", "-c", f'{typed.text}; printf %s "$VLLM_API_KEY"')
    assert re.fullmatch(r"[0-9a-f]{64}", done.stdout)


def _serves_with_vllm(_: Reader, typed: Command) -> None:
    """training/test_rollouts.py starts the server."""
    done = launch(*typed.words(), PYTHON="echo", VLLM_API_KEY="a-secret")
    assert done.stdout.startswith("-m vllm.entrypoints.openai.api_server ")
    model, options = typed.text.split(" ", 2)[1:]
    assert f" --model {model} " in done.stdout
    assert done.stdout.endswith(f" {options}\n")


def _helps(reader: Reader, typed: Command) -> None:
    assert reader.tal(*typed.words()[1:], "--help")[0] == 0


def _inspects(_: Reader, typed: Command) -> None:
    """integrations/test_inspect_tasks.py goes on with the samples."""
    from inspect_ai import eval as evaluate
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    def answer(*_: Any) -> ModelOutput:
        output = ModelOutput.from_content("mockllm", "Nothing.")
        output.usage = ModelUsage()  # else inspect counts tokens, with a vocabulary from elsewhere
        return output

    model = get_model("mockllm/model", custom_outputs=answer)
    (log,) = evaluate(typed.words()[2], model=model, task_args={"max_items": 1}, log_dir="logs", display="none")
    assert log.status == "success"


def _has_help(_: Reader, typed: Command) -> None:
    done = launch(command(typed.words()[0]), *typed.words()[1:], "--help")
    assert done.returncode == 0, done.stderr


def _has_script(_: Reader, typed: Command) -> None:
    """The scripts take minutes."""
    assert (ROOT / typed.words()[1]).is_file()


WAYS: dict[str, Callable[[Reader, Command], None]] = {
    r"tal (data( edit| validate)?|run|launch|recipes|demonstrate|sample|judge|compare)": _helps,
    r"tal (leaderboard|validity|push|serve|doctor)": _helps,
    r"tal run (?!-m |recipes/(carb|downstream)\.yaml|.* --(dry-run|print-config)).+": _trains,
    r"tal run .+ --(dry-run|print-config)": _shows,
    r"tal launch .+": _launches_by_name,
    r"tal run -m .+": _sweeps,
    r"tal run recipes/carb\.yaml\b.*": _measures,
    r"tal run recipes/downstream\.yaml\b.*": _needs_gpus,
    r"tal sample .+": _samples,
    r"tal demonstrate .+": _demonstrates,
    r"tal judge .+": _judges,
    r"tal (compare|leaderboard|validity|data build) .+": _shows,
    r"tal data edit .+": _edits,
    r"tal data validate .+": _validates,
    r"tal init .+": _starts_a_folder,
    r"tal doctor .+": _examines,
    r"tal serve .+": _serves,
    r"tal push .+": _pushes,
    r"curl .+": _asks,
    r"accelerate launch.*": _launches,
    r"make \w+( ARGS=.+)?": _makes,
    r"pip install .+": _installs,
    r"sbatch .+": _submits,
    r"export VLLM_API_KEY=.+": _exports,
    r"launch/vllm_server\.sh .+": _serves_with_vllm,
    r"inspect eval .+": _inspects,
    r"python tests/.+": _has_script,
    r"hf auth login": _has_help,
    r"cd mine": _enters,
}
