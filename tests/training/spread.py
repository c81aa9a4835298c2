"""What two processes do: the same few steps under every kind of sharding, sampling ahead, and a fault on one rank.

Rollouts depend only on prompt and step; under DeepSpeed there are also runs with the policy's own, uninterrupted and
resumed from a checkpoint.

accelerate launch --config_file launch/cpu_zero2.yaml spread.py FOLDER URL      of a server of FOLDER/model
"""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from items import RUBRIC, make_item
from reward_models.scripted import Scripted
from training.small_grpo import Code, chance, ends_with, figures, hanging, poison_loss, raising, settings, tiny_trainer
from transformers import AutoModelForCausalLM
from trl.distributed import DistributedBackend

from think_as_locals import train
from think_as_locals.config.checks import load_recipe
from think_as_locals.data.load import EvalSet
from think_as_locals.engines import Chat
from think_as_locals.judging import Component, write
from think_as_locals.runtime.ranks import join, set_rank_timeout
from think_as_locals.runtime.run_folder import StageFolder
from think_as_locals.training.checkpoints import save_model
from think_as_locals.training.grpo import JudgeTrainer
from think_as_locals.training.logging import ShardsWriter
from think_as_locals.training.rollouts import ColocatedGeneration
from think_as_locals.types import DataError

GLOBAL_BATCH = 8
SLOW_SERVER = ["rollout=vllm_server", "rollout.timeout_s=4000.0"]
STEPS = [
    *("grpo.max_steps=6", "grpo.num_iterations=2", "grpo.gradient_accumulation_steps=2", "grpo.learning_rate=0.01"),
    *("grpo.warmup_steps=2", "grpo.beta=0.05", "grpo.loss_type=dapo", "grpo.gradient_checkpointing=true"),
]
LORA = ["lora=rank16", "lora.r=4"]
ROW_BY_ROW = ["grpo.max_tokens_per_micro_batch=1"]
SOME_ROWS = ["grpo.max_tokens_per_micro_batch=36"]  # in a pass, of other numbers on either rank
WAYS: dict[str, tuple[str | None, list[str]]] = {  # stage of ZeRO, and overrides
    "ddp": (None, SOME_ROWS),
    "zero2": ("2", ROW_BY_ROW),
    "lora_zero2": ("2", LORA),
    "zero3": ("3", SOME_ROWS),
    "lora_zero3": ("3", LORA),
}
STOPPED = ("lora_zero2", "zero3")
ONE_BATCH = ["grpo.steps_per_generation=1", "grpo.gradient_accumulation_steps=1", "grpo.num_iterations=1"]
AHEAD = {  # ways that sample ahead, and overrides
    "ddp": ["reward=full", "prompt=compact_rubric", "rollout.ahead=3"],
    "zero3": [],
    "lora_zero3": [*LORA, "grpo.learning_rate=1e-9"],
}


def sampling(folder: Path, *overrides: str) -> JudgeTrainer:
    """The trainer, which samples by itself."""
    size = f"grpo.per_device_train_batch_size={GLOBAL_BATCH // PartialState().num_processes}"
    return tiny_trainer(folder, *STEPS, size, *overrides, structure=chance)


def make(folder: Path, *overrides: str) -> JudgeTrainer:
    """The trainer, whose completions are drawn by prompt, place in the group and step."""
    trainer = sampling(folder, *overrides)
    end = trainer.processing_class.eos_token_id

    def fixed(prompts: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        first = trainer.accelerator.process_index * len(prompts)
        draws = [
            random.Random(f"{prompt} {(first + row) % trainer.num_generations} {trainer.state.global_step}")
            for row, prompt in enumerate(prompts)
        ]
        return [[*draw.choices(range(10, 300), k=draw.randint(1, 5)), end] for draw in draws], None

    trainer._generate_single_turn = fixed
    return trainer


def curve(trainer: JudgeTrainer) -> list[list[float]]:
    """Loss, gradient norm and learning rate of each step; TRL's KL metric weighs ranks alike, whatever their tokens."""
    names = ("loss", "grad_norm", "learning_rate")
    return [[log[name] for name in names] for log in trainer.state.log_history if "kl" in log]


@contextmanager
def whole(trainer: JudgeTrainer) -> Iterator[Any]:
    """The policy with all of its weights on each rank."""
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    with DistributedBackend(trainer.accelerator).gather_params(list(model.parameters())):
        yield model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(10, 30)[None]).logits


def save(trainer: JudgeTrainer, base: Path, overrides: list[str], folder: Path) -> None:
    """The judge in `folder/model`, where it has an adapter that in `folder/adapter`."""
    config, _ = settings(*overrides)
    save_model(trainer, str(base), config.model, StageFolder(folder), AutoModelForCausalLM.from_pretrained)


def saved_difference(trainer: JudgeTrainer, folder: Path, case: str, overrides: list[str]) -> float | None:
    """How far logits of the saved model are from those of the policy."""
    save(trainer, folder / "model", overrides, folder / case)
    with whole(trainer) as model:  # its forward fetches nothing: hooks of ZeRO-3 are gone with the engine's
        weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
        expected = logits(model) if overrides else None  # on all ranks: with an adapter the hooks are not gone
    if not trainer.accelerator.is_main_process:
        return None
    assert (folder / case / "model" / "model.safetensors").is_file()
    if expected is not None:
        return float((logits(plain(folder / case / "model")) - expected).abs().max())
    loaded = plain(folder / case / "model").state_dict()
    assert loaded.keys() == weights.keys()
    return max(float((loaded[name] - weights[name]).abs().max()) for name in weights)


def plain(folder: Path) -> Any:
    """A model loaded as anyone would, whatever DeepSpeed has set in transformers in this process."""
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()
    return AutoModelForCausalLM.from_pretrained(folder)


def poisoned(folder: Path) -> list[Any]:
    """What is raised for a gradient that is NaN, and whether the weights are as they were."""
    trainer = make(folder)
    parameter = dict(trainer.model.named_parameters())["model.layers.0.mlp.up_proj.weight"]
    parameter.register_hook(lambda gradient: gradient * float("nan"))
    with whole(trainer) as model:
        before = model.state_dict()["model.norm.weight"].clone()
    message = ends_with(trainer.train)
    with whole(trainer) as model:
        return [message, bool((model.state_dict()["model.norm.weight"] == before).all())]


def stopped(run: Path, overrides: list[str]) -> dict[str, Any]:
    """What is logged by a run in one go, and by one that goes on from its only checkpoint, between two samplings."""
    logged = {}
    for name in ("whole", "resumed"):
        trainer = sampling(run, "grpo.save_steps=3", *overrides)
        trainer.train_from(trainer.checkpoints.latest())
        assert (trainer.resumed_from is None) == (name == "whole")
        logged[name] = figures(trainer)
        save(trainer, run / "model", overrides, run / name)
    return logged


def pickles(checkpoint: Path) -> list[Path]:
    """All files of a checkpoint that may be pickles; DeepSpeed adds a script, which nothing runs."""
    data, files = {".json", ".safetensors", ".jinja", ".py"}, sorted(checkpoint.rglob("*"))
    return [file for file in files if file.is_file() and file.suffix not in data and file.name != "latest"]


def tried(checkpoint: Path, trainer: JudgeTrainer) -> dict[str, Any]:
    """A resume in which code stands for a moment in the place of each pickle that torch loads: whether it ran."""
    load, rank, ran = torch.load, PartialState().process_index, {}
    code, marker = (checkpoint.parents[1] / f"{name}-{rank}" for name in ("code", "marker"))

    def load_both(file: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, str | Path):  # not what another rank sends
            torch.save({"module": Code(marker)}, code)
            with suppress(pickle.UnpicklingError):
                load(code, *args, **kwargs)
            ran[Path(file).name] = marker.exists()
            marker.unlink(missing_ok=True)
        return load(file, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "load", load_both)
        trainer.train_from(checkpoint)
    loaded = sorted(loaded for rank in gather_object([ran]) for loaded in rank.items())  # where it ran, that comes last
    return {"pickles": [file.name for file in pickles(checkpoint)], "ran": dict(loaded)}


def sampled_ahead(folder: Path, url: str, *overrides: str) -> dict[str, Any]:
    """Steps that a server samples ahead, in one go and from a checkpoint on; evaluations by it, and a fault."""
    found: dict[str, Any] = {}
    where = ["rollout=vllm_server", f"rollout.url={url}", "rollout.ahead=1", "rollout.timeout_s=20"]
    steps = ["grpo.max_steps=4", "grpo.save_steps=2", "grpo.warmup_steps=0", *ONE_BATCH]
    if PartialState().is_main_process:  # the server's: another prompt would make other words
        shutil.copytree(folder.parent / "model", folder / "model")
    for name in ("whole", "resumed"):
        trainer = sampling(folder, *where, *steps, *overrides)
        trainer.train_from(trainer.checkpoints.latest())
        # A process that has just connected sends the base of an adapter first.
        found[name] = [{**log, "rollout/synced_megabytes": 0} for log in figures(trainer)]
    found["judged"] = gather_object([judged(trainer)])
    trainer._ahead._tokenized, trainer._ahead._rows = no_prompt, None  # the main process alone calls this
    found["fault"] = gather_object([ends_with(lambda: trainer._ahead._start(0))])
    return found


def judged(trainer: JudgeTrainer) -> list[list[str]]:
    """The completions about two items in an evaluation: one is too long, and by one protocol there is only one."""
    config, (item, *_) = settings()
    long = make_item(id="long", prompt="rain " * 5000)
    sets = {
        kind: EvalSet(items=items, dataset="cards", split="all", protocol=kind, orders=1)
        for kind, items in {"listwise": (item, long), "pairwise": (item,)}.items()
    }
    with TemporaryDirectory() as folder:
        found = train.judge_sets(config, trainer, sets, Path(folder) / "step-0.jsonl", lambda *_: None)
    return [[one.judgement.completion for one in scored] for scored in found.values()]


def no_prompt(rows: list[int]) -> NoReturn:
    raise DataError("item 'x': no prompt")


def faults(folder: Path) -> dict[str, Any]:
    """What a fault on rank 1 alone ends with, or the faults that are logged."""
    limits = ["reward.fault_window=20", "reward.max_fault_share=0.1", "reward.timeout_s=0.3"]
    own: dict[str, Component] = {"few": raising(2), "many": raising(3), "hangs": hanging, "nan": lambda *_: math.nan}
    found: dict[str, Any] = {}
    for case in (*own, "loss"):
        trainer = tiny_trainer(folder, *limits)
        if not PartialState().is_main_process:
            if case == "loss":
                poison_loss(trainer)
            else:
                trainer.rewards.own["structure"] = own[case]
        message = ends_with(trainer.train)
        found[case] = message or [log["reward_faults"] for log in trainer.state.log_history if "reward_faults" in log]
    return found


def pairs(folder: Path) -> list[Any]:
    """A group of four that lies on two ranks: the pairs are (right, right) and (wrong, right)."""
    trainer, rank = (
        tiny_trainer(folder, "reward=j1", "grpo.per_device_train_batch_size=2"),
        PartialState().process_index,
    )
    example = trainer.train_dataset[rank]
    best = example["presented"].best
    texts = [write(RUBRIC, "Weighed.", verdict) for verdict in (best, best if rank == 1 else (best + 1) % 4)]
    end = trainer.processing_class.eos_token_id
    completions = [[*ids, end] for ids in trainer.processing_class(texts, add_special_tokens=False)["input_ids"]]
    logged: dict[str, float] = {}
    found = trainer.rewards.score(completions, [example] * 2, 0, logged.__setitem__, trainer._gain_scorer.score)
    return [[dict(breakdown.parts) for breakdown in found if breakdown], logged["consistent_accuracy"]]


def tensor_parallel(folder: Path) -> dict[str, Any]:
    """What both ranks of one engine are given to judge in an evaluation, and how often each item is judged."""
    items = tuple(make_item(id=f"item-{number}") for number in range(5))
    config = load_recipe("recipes/quickstart.yaml", [])
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: SimpleNamespace()))
    trainer: Any = SimpleNamespace(
        use_vllm=True,
        vllm_generation=object.__new__(ColocatedGeneration),
        args=SimpleNamespace(vllm_tensor_parallel_size=2, vllm_max_model_length=None),
        accelerator=SimpleNamespace(unwrap_model=lambda model: model),
        model=model,
        chat=Chat(None),
    )
    engine = Scripted()
    sets = {"test": EvalSet(items=items, dataset="mine", split="test", protocol="listwise", orders=1)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "policy_engine", lambda *_: nullcontext(engine))
        journal = folder / f"step-0.{PartialState().process_index}.jsonl"
        judged = train.judge_sets(config, trainer, sets, journal, lambda *_: None)
    counts = {item.id: len(scored) for (_, _, item), scored in judged.items()}
    return {"given": gather_object([engine.asked]), "counts": counts}


def main(folder: Path, url: str) -> None:
    from training import fsdp2

    join()
    set_rank_timeout(load_recipe("recipes/quickstart.yaml", SLOW_SERVER))
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "false"
    found: dict[str, Any] = {"fsdp2": fsdp2.check(folder, url)}  # first: DeepSpeed leaves its mark on transformers
    print("fsdp2", found["fsdp2"], flush=True)
    found["faults"] = gather_object([faults(folder / "faults")])
    found["pairs"] = gather_object([pairs(folder / "faults")])
    for case, (stage, overrides) in WAYS.items():
        os.environ["ACCELERATE_USE_DEEPSPEED"] = str(stage is not None).lower()
        os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = stage or ""
        for setting in ("INIT", "SAVE_16BIT_MODEL"):
            os.environ[f"ACCELERATE_DEEPSPEED_ZERO3_{setting}"] = str(stage == "3").lower()
        trainer = make(folder, "grpo.save_steps=3", *overrides)
        of_another_case = ends_with(trainer.checkpoints.latest)
        trainer.add_callback(ShardsWriter(trainer.accelerator, folder / f"{case}.json"))
        trainer.train()
        found[case] = {
            "curve": curve(trainer),
            "unshared": trainer.unshared_reason,
            "difference": saved_difference(trainer, folder, case, overrides),
            "another launch": of_another_case,
        }
        if overrides != LORA:  # with an adapter there are the same files
            checkpoint = folder / "checkpoints" / "step-3"
            found[case]["checkpoint"] = tried(checkpoint, make(folder, *overrides, "grpo.max_steps=4"))
        if case in AHEAD:
            found[case]["ahead"] = sampled_ahead(folder / f"{case}_ahead", url, *AHEAD[case])
        if case in STOPPED:
            found[case]["stopped"] = stopped(folder / f"{case}_stopped", overrides)
        if case in ("zero2", "zero3"):
            found[case]["poisoned"] = poisoned(folder)
        print(case, found[case], flush=True)
    timeout = torch.distributed.group.WORLD._get_backend(torch.device("cpu")).options._timeout
    found["tensor parallel"] = tensor_parallel(folder)
    found["ranks wait"] = gather_object([timeout.total_seconds()])
    if PartialState().is_main_process:
        (folder / "results.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
