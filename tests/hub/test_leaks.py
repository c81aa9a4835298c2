"""Leak checks of a push: no key and no local path is pushed, however it is encoded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hub.disguises import DISGUISES, KEYS, disguised, vocabulary
from hub.small_runs import REPO, refused, write_evaluation
from safetensors.torch import load_file, save_file

from think_as_locals.hub.files import HubFile
from think_as_locals.hub.leaks import LeakError, readings, scan_for_leaks
from think_as_locals.hub.push import prepare
from think_as_locals.hub.source_run import read_judge_run
from think_as_locals.types import DataError

SECRETS = {
    "a Hugging Face token": "hf_" + "aB3" * 12,
    "a Weights & Biases key": "wandb_api_key: " + "0123456789" * 4,
    "an API key": "sk-proj-" + "aB3" * 12,
    "an authorization header": "Authorization: Bearer abcdefgh.ijklmnop",
    "a private key": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "a URL with a password": "https://me:pa55word@pypi.example/simple",
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
        "fw_" + "aB3" * 8,
        "hf_oauth_" + "aB3" * 12,
        "MINE_TOKEN=" + "aB3" * 8,
        '"comet_api_key": "' + "aB3" * 8,
    ],
)
def test_secret_is_found_after_any_preceding_characters(run: Path, secret: str) -> None:
    """JSON escapes, such as a backslash and a letter for the end of a line, must not hide what follows."""
    plant(run / "model" / "tokenizer_config.json", secret)
    refused(LeakError, r"tokenizer_config.json", run)


def test_encoded_keys_are_found_in_every_disguise(run: Path) -> None:
    """20 keys x 26 disguises x 8 files: none of 4,160 gets through."""
    files = list(disguised())
    assert len(files) == 4160
    settings, missed = read_judge_run(run, []), []
    for start in range(0, len(files), 8):  # few scans: the patterns of this machine are made anew for each
        scanned = {
            name: HubFile(f"file {number}", content) for number, (name, content) in enumerate(files[start : start + 8])
        }
        with pytest.raises(LeakError) as found:
            scan_for_leaks(scanned.values(), settings)
        missed += [name for name, file in scanned.items() if f"{file.path}: " not in str(found.value)]
    assert not missed


def test_key_ending_in_a_quoted_printable_fold_is_read_in_full() -> None:
    key = KEYS["Azure"]
    content = f"See\n{DISGUISES['invisible characters, escaped'](key)}\nthere.".encode()
    assert any(key in reading for reading in readings(content))


@pytest.mark.slow
def test_large_vocabulary_gives_no_false_positive(run: Path) -> None:
    scan_for_leaks([HubFile("tokenizer.json", vocabulary(150_000))], read_judge_run(run, []))


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": []}', "{", '{"weight_map": {"a": [1]}}', "[" * 9000])
def test_invalid_weight_index_is_rejected(run: Path, content: str) -> None:
    (run / "model" / "model.safetensors.index.json").write_text(content)
    refused(DataError, r"model.safetensors.index.json(: not JSON|: expected a JSON|: no index of weights| names)", run)


def test_harmless_text_that_resembles_a_secret_passes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "attention")
    monkeypatch.setenv("LATIN1_TOKEN", "\udcfc" * 9)  # bytes that are not UTF-8
    plant(run / "model" / "tokenizer_config.json", "attention: risk-assessment-of-many-things, basic responsibilities")
    names = {
        "password": 123456,
        "secret": "internationalisation",
        "key_variable": "MY_API_KEY",
        "jina_embeddings_v3": 1,
    }
    plant(run / "model" / "tokenizer.json", json.dumps(names))
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
    save_file(load_file(path), path, metadata={"made by": SECRETS["a Hugging Face token"]})
    refused(LeakError, r"model.safetensors: a Hugging Face token", run)
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
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("path: null", "path: /srv/private/base", 1))
    plant(run / "model" / "config.json", "/srv/private/base/v2")
    refused(LeakError, r"config.json: a path of the run", run)
