"""No key and no path of this machine leaves it, wherever it stands and however it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hub.small_runs import write_evaluation
from safetensors.torch import load_file, save_file

from think_as_locals.hub.leaks import LeakError
from think_as_locals.hub.push import prepare

SECRETS = {
    "a Hugging Face token": "hf_" + "aB3" * 12,
    "a Weights & Biases key": "wandb_api_key: " + "0123456789" * 4,
    "an API key": "sk-proj-" + "aB3" * 12,
    "an authorization header": "Authorization: Bearer abcdefgh.ijklmnop",
    "a private key": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "a URL with a password": "https://me:pa55word@pypi.example/simple",
}
VALUE = 'kéy "with" odd characters'


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("name", ["tal_judge.json", "tokenizer.json", "chat_template.jinja"])
def test_a_secret_stops_a_push_and_is_not_shown(run: Path, kind: str, name: str) -> None:
    secret = SECRETS[kind]
    path = run / "model" / name
    path.write_text(f"{path.read_text().rstrip()[:-1]} {secret} }}") if name == "chat_template.jinja" else _plant(
        path, secret
    )
    with pytest.raises(LeakError) as told:
        prepare(run, "people/judge")
    assert f"{name}: {kind}" in str(told.value)
    assert secret[-16:] not in str(told.value)


@pytest.mark.parametrize(
    "secret",
    [
        "\n" + SECRETS["a Hugging Face token"],
        "HF_" + SECRETS["a Hugging Face token"],
        "\t" + SECRETS["an API key"],
        "\u0001" + SECRETS["an API key"],
        "\nbearer " + "abcdefgh" * 3,
        '"Authorization": "Basic bWU6cGFzc3dvcmQ="',
        "github_pat_" + "A1b2C3d4E5" * 5,
        "\nAKIA" + "ABCDEFGH" * 2,
        "AIza" + "a1B2c3D" * 5,
        "xoxb-123456789012-" + "a1B2c3" * 3,
        "aws_secret_access_key = " + "wJalr/XUtn" * 4,
    ],
)
def test_a_secret_is_found_whatever_stands_before_it(run: Path, secret: str) -> None:
    """In JSON a line's end is a backslash and a letter, which must not hide what follows."""
    _plant(run / "model" / "tokenizer_config.json", secret)
    with pytest.raises(LeakError, match=r"tokenizer_config.json"):
        prepare(run, "people/judge")


def test_what_only_looks_like_a_secret_may_stand(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "attention")
    monkeypatch.setenv("LATIN1_TOKEN", "\udcfc" * 9)  # bytes that are no UTF-8
    _plant(run / "model" / "tokenizer_config.json", "attention: risk-assessment-of-many-things, basic responsibilities")
    prepare(run, "people/judge")


@pytest.mark.parametrize("variable", ["HF_TOKEN", "WANDB_API_KEY", "VLLM_API_KEY", "TAL_API_KEY", "db_password"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_keys_of_this_environment_are_known(
    run: Path, variable: str, ascii_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, VALUE)
    path = run / "model" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "note": f"<{VALUE}>"}, ensure_ascii=ascii_only))
    with pytest.raises(LeakError, match=f"tokenizer_config.json: the value of {variable}") as told:
        prepare(run, "people/judge")
    assert "odd characters" not in str(told.value)
    monkeypatch.setenv(variable, "EMPTY")  # what vLLM is told where there is no key
    path.write_text(json.dumps({**json.loads(path.read_text()), "note": "EMPTY"}))
    prepare(run, "people/judge")


def test_the_token_of_this_login_is_known(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("think_as_locals.hub.leaks.get_token", lambda: "kept-in-a-file")
    _plant(run / "carb" / "step-30.json", "kept-in-a-file")
    with pytest.raises(LeakError, match=r"carb/step-30.json: the token of this login"):
        prepare(run, "people/judge")


def test_headers_of_weights_are_read(run: Path) -> None:
    path = run / "model" / "model.safetensors"
    save_file(load_file(path), path, metadata={"made by": SECRETS["a Hugging Face token"]})
    with pytest.raises(LeakError, match=r"model.safetensors: a Hugging Face token"):
        prepare(run, "people/judge")
    save_file({str(run / "weight"): torch.zeros(1)}, path)
    with pytest.raises(LeakError, match=r"model.safetensors: a path of the run"):
        prepare(run, "people/judge")


def test_places_on_this_machine_are_known(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    path = run / "model" / "config.json"
    for text, kind in (
        (f"{run}/cold_start", "a path of the run"),
        ("/home/someone/base", "a path in the home directory"),
    ):
        path.write_text(json.dumps({"_name_or_path": text}))
        with pytest.raises(LeakError, match=f"config.json: {kind}") as told:
            prepare(run, "people/judge")
        assert text not in str(told.value)
    path.write_text(json.dumps({"_name_or_path": "/home/someone/ünï"}))
    with pytest.raises(LeakError, match=r"config.json: a path in the home directory"):
        prepare(run, "people/judge")
    for harmless in ("/home/someone", f"{run}s", "/home/someone else"):  # tokens of a vocabulary, say
        path.write_text(json.dumps({"_name_or_path": harmless}))
        prepare(run, "people/judge")


def test_where_base_and_data_lie_is_not_told(run: Path) -> None:
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("path: null", "path: /srv/private/base", 1))
    _plant(run / "model" / "config.json", "/srv/private/base/v2")
    with pytest.raises(LeakError, match=r"config.json: a path of the run"):
        prepare(run, "people/judge")


def test_where_an_evaluation_and_its_data_lie_is_not_told(run: Path, tmp_path: Path) -> None:
    evaluation = write_evaluation(
        tmp_path / "measured", run / "model", "data=jsonl", "data.path=/srv/private/items.jsonl"
    )
    for place in ("/srv/private/items.jsonl", str(evaluation)):
        _plant(evaluation / "carb" / "mine.json", place)
        with pytest.raises(LeakError, match=r"carb/measured.json: a path of the run"):
            prepare(run, "people/judge", evaluations=[evaluation])


def _plant(path: Path, secret: str) -> None:
    """Into JSON, where it may stand anywhere."""
    values = json.loads(path.read_text())
    key = "chat_template_kwargs" if path.name == "tal_judge.json" else "note"
    path.write_text(json.dumps({**values, key: {"said": secret}}))
