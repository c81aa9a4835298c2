"""Leak checks of a push: no key and no local path is pushed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hub.small_runs import REPO, refused, write_config, write_evaluation
from safetensors.torch import load_file, save_file

from think_as_locals.hub.leaks import LeakError
from think_as_locals.hub.push import prepare
from think_as_locals.types import DataError

SECRETS = {
    "Hugging Face Token": "hf_" + "aB3" * 12,
    "W&B Key": "wandb_api_key: " + "0123456789" * 4,
    "API Key": "sk-proj-" + "aB3" * 12,
    "Authorization Header": "Authorization: Bearer abcdefgh.ijklmnop",
    "Private Key": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "Basic Auth Credentials": "https://me:pa55word@pypi.example/simple",
    "GitHub Token": "\nghp_" + "aB3" * 12,
    "AWS Access Key": "AKIA" + "ABCDEFGH" * 2,
}
VALUE = 'kéy "with" odd characters'


def plant(path: Path, text: str, *, ascii_only: bool = True) -> None:
    """Write a text into a JSON file."""
    key = "chat_template_kwargs" if path.name == "tal_judge.json" else "note"
    values = {**json.loads(path.read_text()), key: {"text": text}}
    path.write_text(json.dumps(values, ensure_ascii=ascii_only))


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("name", ["tal_judge.json", "tokenizer.json", "chat_template.jinja"])
def test_secret_stops_a_push_and_is_not_shown(run: Path, kind: str, name: str) -> None:
    path, secret = run / "model" / name, SECRETS[kind]
    if name == "chat_template.jinja":
        path.write_text(f"{path.read_text().rstrip()[:-1]} {secret} }}")
    else:
        plant(path, secret)
    assert secret[-16:] not in refused(LeakError, f"{name}: {kind}", run)


@pytest.mark.parametrize("content", ["[]", "{", '{"weight_map": {"a": "other.safetensors"}}'])
def test_invalid_weight_index_is_rejected(run: Path, content: str) -> None:
    (run / "model" / "model.safetensors.index.json").write_text(content)
    refused(DataError, r"model.safetensors.index.json: (not JSON|expected a JSON)|lacks other", run)


def test_harmless_text_that_resembles_a_secret_passes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "attention")
    plant(run / "model" / "tokenizer_config.json", "attention: risk-assessment-of-many-things, basic responsibilities")
    prepare(run, REPO)


@pytest.mark.parametrize("variable", ["HF_TOKEN", "WANDB_API_KEY", "VLLM_API_KEY", "TAL_API_KEY", "db_password"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_environment_key_values_are_found(
    run: Path, variable: str, ascii_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, VALUE)
    path = run / "model" / "tokenizer_config.json"
    plant(path, f"<{VALUE}>", ascii_only=ascii_only)
    assert "odd characters" not in refused(LeakError, f"tokenizer_config.json: the value of {variable}", run)
    monkeypatch.setenv(variable, "EMPTY")  # vLLM's stand-in for a key
    plant(path, "EMPTY")
    prepare(run, REPO)


def test_login_token_is_found(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("think_as_locals.hub.leaks.get_token", lambda: "kept-in-a-file")
    plant(run / "carb" / "step-30.json", "kept-in-a-file")
    refused(LeakError, r"carb/step-30.json: the token of this login", run)


def test_safetensors_headers_are_scanned(run: Path) -> None:
    path = run / "model" / "model.safetensors"
    save_file(load_file(path), path, metadata={"made by": SECRETS["Hugging Face Token"]})
    refused(LeakError, r"model.safetensors: Hugging Face Token", run)
    save_file({str(run / "weight"): torch.zeros(1)}, path)
    refused(LeakError, r"model.safetensors: a path of the run", run)


def test_local_paths_are_found(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    path = run / "model" / "config.json"
    for text, kind in (
        (f"{run}/cold_start", "a path of the run"),
        ("/home/someone/base", "a path in the home directory"),
        ("/home/someone/ünï", "a path in the home directory"),
    ):
        path.write_text(json.dumps({"model_type": "qwen3", "_name_or_path": text}))
        assert text not in refused(LeakError, f"config.json: {kind}", run)
    for harmless in ("/home/someone", f"{run}s", "/home/someone else"):  # tokens of a vocabulary, say
        path.write_text(json.dumps({"model_type": "qwen3", "_name_or_path": harmless}))
        prepare(run, REPO)


def test_local_paths_of_base_model_and_data_are_found(run: Path, tmp_path: Path) -> None:
    data = "/srv/private/items.jsonl"
    evaluation = write_evaluation(tmp_path / "measured", run / "model", "data=jsonl", f"data.path={data}")
    for text in (data, str(evaluation)):
        plant(evaluation / "carb" / "mine.json", text)
        refused(LeakError, r"carb/measured.json: a path of the run", run, evaluations=[evaluation])
    write_config(run, "trainer=grpo", "model.scratch=null", "model.path=/srv/private/base")
    plant(run / "model" / "config.json", "/srv/private/base/v2")
    refused(LeakError, r"config.json: a path of the run", run)
