"""SCPO for ten countries in one process: does memory stay flat?"""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from gpu.checks import Report, Scale
from transformers import AutoModelForSequenceClassification, DebertaV2Config, LlamaConfig

from think_as_locals.config.checks import load_config
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.data import read
from think_as_locals.reward_models.scratch import train_tokenizer
from think_as_locals.run import start
from think_as_locals.scpo.trainer import VariantTrainer

MODELS = {"deberta": "deberta_v3_rm", "llama": "tulu3_8b_rm"}


def make_reward_model(scale: Scale, shape: str, folder: Path, config: ScpoConfig) -> None:
    """A scalar reward model of random weights in the shape of a published one."""
    texts = [text for item in read(config.data, 0) for text in (item.prompt, *item.responses)]
    tokenizer = train_tokenizer(texts, 400, 0)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "num_labels": 1}
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    if shape == "deberta":  # deberta-v3-base
        positions = {"relative_attention": True, "position_buckets": 256, "pos_att_type": ["p2c", "c2p"]}
        shape_of = {"vocab_size": scale.pick(len(tokenizer), 128_100), "norm_rel_ebd": "layer_norm", **positions}
        base = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
        architecture: Any = DebertaV2Config(**ids, **shape_of, **scale.pick(small, base))
    else:  # Llama 3.1 8B, two of its 32 layers
        wide = {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 2, "num_attention_heads": 32}
        shape_of = {"vocab_size": scale.pick(len(tokenizer), 128_256), "num_key_value_heads": scale.pick(1, 8)}
        architecture = LlamaConfig(**ids, **shape_of, **scale.pick(small, wide))
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(architecture, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def countries_trained(scale: Scale, report: Report, shape: str) -> None:
    """Ten countries after one another, and what is allocated when each is done."""
    folder = scale.folder / f"rm-{shape}"
    words = [f"model={MODELS[shape]}", f"model.path={folder}", "model.revision=null", "model.requires_gpu=false"]
    words += ["global_rm=none", "scpo.variants=[full]", "scpo.seeds=[0]", "scpo.max_steps=2", "scpo.keep_models=[]"]
    words += ["data.groups=[street_snack]", "scpo.batch_size=4", "scpo.per_device_train_batch_size=4"]
    words += ["eval.bootstrap_samples=200", f"run.dir={scale.folder}", f"run.name=scpo-{shape}"]
    if shape == "llama":
        words += ["lora=rank16", f"model.dtype={scale.pick('float32', 'bfloat16')}"]
    recipe = "recipes/scpo_quickstart.yaml"
    config = load_config(recipe, words)
    assert isinstance(config, ScpoConfig)
    make_reward_model(scale, shape, folder, config)
    allocated: list[float] = []
    train_variant = VariantTrainer.train_variant

    def measured(trainer: VariantTrainer, *arguments: Any) -> Any:
        gc.collect()
        now = psutil.Process().memory_info().rss if scale.toy else torch.cuda.memory_allocated()
        allocated.append(now / 1e6)
        return train_variant(trainer, *arguments)

    VariantTrainer.train_variant = measured  # type: ignore[method-assign]
    start(recipe, words)
    report("countries_trained", len(allocated), shape)
    growth = allocated[-1] - allocated[1]
    report(
        "flat",
        100 * growth / allocated[1],
        f"{allocated[1]:,.0f} MB before the second training, {growth:+,.0f} MB since",
    )


RUN = {f"scpo_{shape}": partial(countries_trained, shape=shape) for shape in MODELS}
