"""Three small chat models that answer the quick start's questions.

`often_us` often answers as if asked about the US; `one_of_four` gives one of four answers, the right one most often;
`truth` is always right, so that its log-probabilities score answers.

python tests/benchmarks/policies.py [FOLDER]
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

RIGHT = 0.35  # share of answers of the first two that are right by design; `one_of_four` guesses the others
SCRATCH = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
SCRATCH |= {"num_key_value_heads": 1, "num_subwords": 400, "num_phrases": 1024}


def make_policy(folder: Path, answers: Sequence[tuple[str, str]], steps: int) -> None:
    """Make a small chat model that gives these answers to these prompts, each as often as it is among them."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    from think_as_locals.config.schema import ScratchSection
    from think_as_locals.engines import Chat
    from think_as_locals.reward_models.scratch import make_judge

    if (folder / "model").is_dir():
        return
    make_judge(
        folder / "untrained",
        [text for row in answers for text in row],
        ScratchSection(**SCRATCH, initializer_range=0.06),
        0,
    )
    chat = Chat(AutoTokenizer.from_pretrained(folder / "untrained"))
    prompts = chat.encode([[{"role": "user", "content": prompt}] for prompt, _ in answers])
    texts = chat.tokenizer([answer for _, answer in answers], add_special_tokens=False)["input_ids"]
    said = [[*text, chat.tokenizer.eos_token_id] for text in texts]
    rows = [
        {"input_ids": [*prompt, *text], "labels": [-100] * len(prompt) + text}
        for prompt, text in zip(prompts, said, strict=True)
    ]
    plain = {"use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
    arguments = SFTConfig(
        output_dir=str(folder / "trained"),
        max_steps=steps,
        learning_rate=5e-3,
        warmup_steps=10,
        per_device_train_batch_size=64,
        gradient_checkpointing=False,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        logging_steps=steps,
        **plain,
    )
    trainer = SFTTrainer(
        str(folder / "untrained"), arguments, train_dataset=Dataset.from_list(rows), processing_class=chat.tokenizer
    )
    trainer.train()
    trainer.save_model(str(folder / "unfinished"))
    (folder / "unfinished").rename(folder / "model")


def make_policies(folder: Path) -> None:
    """Make the policies that are not there yet."""
    from think_as_locals.config.checks import load_recipe
    from think_as_locals.data import read

    items = read(load_recipe("quickstart").data, 0)
    prompts = sorted({(item.prompt, item.group, item.culture) for item in items})
    facts = {(item.group, item.culture): item.responses[item.best] for item in items}
    rng = random.Random(0)
    often_us = [
        (prompt, facts[group, culture if rng.random() < RIGHT else "US"])
        for prompt, group, culture in prompts
        for _ in range(40)
    ]
    of_four = {item.prompt: item for item in items}.values()
    one_of_four = [
        (item.prompt, item.responses[item.best] if rng.random() < RIGHT else rng.choice(item.responses))
        for item in of_four
        for _ in range(40)
    ]
    right = [(prompt, facts[group, culture]) for prompt, group, culture in prompts for _ in range(10)]
    make_policy(folder / "often_us", often_us, steps=250)
    make_policy(folder / "one_of_four", one_of_four, steps=1000)
    make_policy(folder / "truth", right, steps=250)


if __name__ == "__main__":
    make_policies(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/policies"))
