"""Files of a push: a complete judge, an adapter if its base is on the Hub, and no link, pickle, key or local path."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from hub.small_runs import REPO, content_of, download, refused, shard, write_config, write_evaluation, write_run
from peft import LoraConfig, get_peft_model
from reward_models.tiny import ITEMS
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from think_as_locals.hub.leaks import LeakError
from think_as_locals.hub.push import prepare
from think_as_locals.judging import prompt_texts
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.training_items import save_training_items
from think_as_locals.types import ConfigError, DataError


def judge_texts(folder: Path) -> list[str]:
    return [judgement.completion for judgement in Judge.load(str(folder)).judge(ITEMS)]


def test_pushed_judge_gives_the_same_judgements(run: Path, tmp_path: Path) -> None:
    push = prepare(run, REPO)
    repository = download({file.path: file.content for file in push.files}, tmp_path / "repository")
    assert judge_texts(repository) == judge_texts(run / "model")
    assert any(judge_texts(repository))
    prompt = {path.name: path.read_text() for path in (repository / "prompt").iterdir()}
    assert prompt == {f"{name.removesuffix('.txt')}.txt": f"{text}\n" for name, text in prompt_texts("compact").items()}


def test_weights_that_are_pickled_or_missing_are_rejected(run: Path) -> None:
    weights = run / "model" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(pickle.dumps({"weight": [0.0] * 100}))
    refused(DataError, r"model.safetensors: [\d,]+ bytes that are no whole file of safetensors", run)
    weights.write_bytes(whole)
    names = shard(run / "model")
    refused(DataError, f"lacks {names[1]}", run)
    (run / "model" / names[1]).write_bytes((run / "model" / names[0]).read_bytes())
    assert set(names) <= content_of(prepare(run, REPO)).keys()
    for content in ("[]", "{", '{"weight_map": {"a": "other.safetensors"}}'):
        (run / "model" / "model.safetensors.index.json").write_text(content)
        refused(DataError, r"model.safetensors.index.json: (not JSON|expected a JSON)|lacks other", run)


def test_unfinished_run_or_invalid_repository_name_is_rejected(run: Path) -> None:
    for repo in ("judge", "people/judge/1", ""):
        refused(ConfigError, "--repo", run, repo)
    missing = {
        "config.yaml": "not the configuration of a training run",
        "model": "expected the folder of a finished training run",
    }
    for name, message in missing.items():
        (run / name).rename(run / f"gone-{name}")
        refused(DataError, message, run)


@pytest.mark.parametrize("linked", ["model", "model/model.safetensors", "carb", "carb/step-30.json"])
def test_links_are_not_followed(run: Path, tmp_path: Path, linked: str) -> None:
    (run / linked).rename(tmp_path / "elsewhere")
    (run / linked).symlink_to(tmp_path / "elsewhere")
    refused(ConfigError, "is a link, and none is followed", run)


@pytest.fixture
def adapted(tmp_path: Path) -> Path:
    """A run that trained an adapter of a model on the Hub, as it leaves it: with the local path of the base model."""
    run = write_run(tmp_path / "adapted", "trainer=grpo", "model=qwen2_5_7b", "lora=rank16")
    (run / "model").rename(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    model.save_pretrained(run / "adapter")
    model.merge_and_unload().save_pretrained(run / "model")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "tal_judge.json"):
        content = (tmp_path / "base" / name).read_bytes()
        (run / "model" / name).write_bytes(content)
        if name != "tal_judge.json":
            (run / "adapter" / name).write_bytes(content)
    (run / "adapter" / "training_args.bin").write_bytes(pickle.dumps("never"))
    return run


def test_pushed_adapter_names_its_base_model_on_the_hub(adapted: Path, tmp_path: Path) -> None:
    assert str(tmp_path / "base") in (adapted / "adapter" / "adapter_config.json").read_text()
    for folder in ("model", "adapter"):
        save_training_items(["0123456789abcdef"], adapted / folder)
    push = prepare(adapted, REPO, adapter=True)
    repository = download({file.path: file.content for file in push.files}, tmp_path / "repository")
    assert {path.name for path in repository.iterdir() if path.is_file()} == {
        *("README.md", "adapter_config.json", "adapter_model.safetensors", "tal_judge.json", "training_items.txt"),
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    }
    assert push.left_out == ("adapter/'training_args.bin': not on the list of files that are pushed",)
    config = json.loads((repository / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("Qwen/Qwen2.5-7B-Instruct", "main")
    card = (repository / "README.md").read_text()
    assert "base_model_relation: adapter" in card
    assert "This repository holds only the LoRA adapter." in card
    # With the base where that name leads to, it judges as the judge that it was merged into.
    config |= {"base_model_name_or_path": str(tmp_path / "base"), "revision": None}
    (repository / "adapter_config.json").write_text(json.dumps(config))
    assert judge_texts(repository) == judge_texts(adapted / "model") != judge_texts(tmp_path / "base")
    merged = content_of(prepare(adapted, REPO))
    assert "model.safetensors" in merged
    assert not any(path.startswith("adapter") for path in merged)


def test_adapter_without_a_base_on_the_hub_is_rejected(run: Path, adapted: Path) -> None:
    refused(ConfigError, "no adapter/, this run trained without lora", run, adapter=True)
    adapter = ["model=qwen2_5_7b", "lora=rank16"]
    write_config(adapted, "trainer=grpo", *adapter, "model.path=/srv/base")
    refused(ConfigError, r"belongs to model.path=/srv/base, expected a model on the Hub", adapted, adapter=True)
    write_config(adapted, "trainer=demonstrated_grpo", "sft.data=x", *adapter)
    refused(ConfigError, "the weights after the cold start", adapted, adapter=True)


# --- no key and no local path ---

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
def test_secret_stops_a_push_and_is_not_shown(run: Path, kind: str) -> None:
    secret = SECRETS[kind]
    for name in ("tal_judge.json", "tokenizer.json", "chat_template.jinja"):
        path = run / "model" / name
        sound = path.read_text()
        if name == "chat_template.jinja":
            path.write_text(f"{sound.rstrip()[:-1]} {secret} }}")
        else:
            plant(path, secret)
        assert secret[-16:] not in refused(LeakError, f"{name}: {kind}", run)
        path.write_text(sound)


@pytest.mark.parametrize("variable", ["HF_TOKEN", "WANDB_API_KEY", "VLLM_API_KEY", "TAL_API_KEY", "db_password"])
def test_environment_key_values_are_found(run: Path, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run / "model" / "tokenizer_config.json"
    monkeypatch.setenv(variable, VALUE)
    for ascii_only in (True, False):
        plant(path, f"<{VALUE}>", ascii_only=ascii_only)
        assert "odd characters" not in refused(LeakError, f"tokenizer_config.json: the value of {variable}", run)
    monkeypatch.setenv(variable, "EMPTY")  # vLLM's stand-in for a key
    monkeypatch.setenv("SOME_KEY", "attention")
    plant(path, "EMPTY attention: risk-assessment-of-many-things, basic responsibilities")
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
    home = "a path in the home directory"
    for text, kind in (
        (f"{run}/cold_start", "a path of the run"),
        ("/home/someone/base", home),
        ("/home/someone/ünï", home),
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
