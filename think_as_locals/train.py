"""Train a judge: items -> cold start -> GRPO, evaluated at checkpoints -> model -> report."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

from accelerate import PartialState
from accelerate.utils.memory import clear_device_cache
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM

from think_as_locals.config.launch import Launch, read_launch
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.config.schema import SftSection
from think_as_locals.data.load import EvalSet, TrainingData, describe_items
from think_as_locals.data.sources import jsonl
from think_as_locals.data.splits import hash_fraction, mix, select, shuffle_labels
from think_as_locals.engines.transformers_engine import quiet_transformers
from think_as_locals.evaluation import carb
from think_as_locals.evaluation.journal import Advance, query_with_journal
from think_as_locals.evaluation.judgements import grouped
from think_as_locals.evaluation.report import FROM_SCRATCH, is_randomly_initialised, next_steps, write_report
from think_as_locals.judging import render, render_presented
from think_as_locals.machine.estimates import estimates
from think_as_locals.reward_models.judge import Judge, JudgeSettings
from think_as_locals.reward_models.protocols import JudgingProtocol
from think_as_locals.reward_models.reward_model import ScoredItem, apply_too_long, combine
from think_as_locals.reward_models.scratch import make_judge
from think_as_locals.reward_models.training_items import item_hash, save_training_items, training_hashes
from think_as_locals.runtime.model_files import reading_model
from think_as_locals.runtime.output import print_result, shorten_repeats
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.runtime.terminal import progress_console
from think_as_locals.training.checkpoints import Checkpoints, StopSignals, save_model, stop_if_requested, train_stage
from think_as_locals.training.cold_start import TRACKED_PART, ColdStartTrainer, demonstrate, with_origins
from think_as_locals.training.faults import parse_failure_causes
from think_as_locals.training.grpo import (
    MAX_CHECKED,
    JudgeTrainer,
    count_prompt_tokens,
    gather_shares,
    policy_engine,
    share_of_rank,
)
from think_as_locals.training.logging import LINE_EVERY_S, CompletionsWriter, EvalCallback, LiveView, tracked
from think_as_locals.types import TEST, DataError, Item, ProtocolKind, cut

_TOKENIZER_DEMONSTRATIONS = 4000
_EXAMPLES = 3
_JUDGED_AT_ONCE = 1024  # by vLLM, between two looks at signals
_MORE_BYTES = 500  # at most, that a chat template and the names of culture and language add to a prompt


def plan(config: RunConfig, data: TrainingData) -> list[tuple[str, str]]:
    """Return what a run would do."""
    grpo, every, launch = config.grpo, config.eval.every_steps, read_launch(config.run.launch)
    steps = steps_of(config, launch, len(data.train))
    batch = grpo.per_device_train_batch_size * grpo.gradient_accumulation_steps * launch.processes
    asked = dict.fromkeys((each.protocol, each.orders, item) for each in data.sets.values() for item in each.items)
    protocols = ((JudgingProtocol(kind=kind, orders=orders, convention="strict"), item) for kind, orders, item in asked)
    times, judged = 1 + math.ceil(steps / every), sum(len(p.requests(item, config.seed)) for p, item in protocols)
    sft = f"SFT, {config.sft.length}, then " if config.sft else ""
    rises = ", whose learning rate only rises (grpo.warmup_steps)" * (grpo.warmup_steps >= steps)
    weights, path = config.reward.weights.items(), config.model.path or "a randomly initialised model"
    return [
        ("training", f"{path}: {sft}GRPO, {steps:,} steps of {batch:,} completions{rises}"),
        ("training items", f"{describe_items(data.train)} ({', '.join(config.data.sources)})"),
        ("rollouts", f"{grpo.num_generations} per prompt, up to {grpo.max_completion_length} tokens each"),
        ("rewards", ", ".join(f"{name} {weight:g}" for name, weight in weights if weight)),
        *((f"set {name}", f"{describe_items(s.items)} ({s.dataset}, {s.split})") for name, s in data.sets.items()),
        ("evaluations", f"{times:,} of {judged:,} judgements each: before GRPO, every {every} steps and at the end"),
        *estimates(config, launch),
    ]


def steps_of(config: RunConfig, launch: Launch, items: int) -> int:
    """Return the optimizer steps of a run on `items` training items, as TRL counts them."""
    grpo, more = config.grpo, config.grpo.model_extra or {}
    if grpo.max_steps > 0:
        return grpo.max_steps
    rows = grpo.per_device_train_batch_size * launch.processes
    sampled = more.get("generation_batch_size")
    sampled = sampled or rows * (more.get("steps_per_generation") or grpo.gradient_accumulation_steps)
    batches = items * grpo.num_generations // sampled  # what does not fill the last one is left out of an epoch
    micro_steps = batches * (sampled // rows) * more.get("num_iterations", 1)
    steps_in_epoch: int = max(1, math.ceil(micro_steps / grpo.gradient_accumulation_steps))
    return math.ceil(grpo.num_train_epochs * steps_in_epoch)


def run(config: RunConfig, data: TrainingData, folder: RunFolder) -> None:
    """Train a judge, as every process of a launch does; stages that are done in the run's folder are not repeated."""
    quiet_transformers()
    is_main = PartialState().is_main_process
    console = progress_console(is_main=is_main)
    trained = ", ".join(f"{data.sources.count(name):,} of {name}" for name in config.data.sources)
    evaluated = ", ".join(f"{name} {len(each.items):,}" for name, each in data.sets.items())
    console.print(f"{config.run.name}: training items {trained}; evaluation items: {evaluated}")
    if config.data.shuffle_labels:
        data = replace(data, train=shuffle_labels(data.train, config.seed))
    with StopSignals() as signals:
        model = str(config.model.path)  # what GRPO trains: this, or the result of the cold start
        if config.sft is not None:
            cold_start(config, config.sft, data, folder, signals, console)
            model = str(folder.cold_start.model)
            stop_if_requested(config.run.name, signals, "the cold start")
        if not folder.model.is_dir():
            grpo(config, model, data, folder, signals, console)
        if is_main:
            if not folder.examples.is_file():
                jsonl.write(select(data.sets[TEST].items, _EXAMPLES), folder.examples)
            report, best = write_report(folder.path), carb.best_step(folder)
            for name in folder.evaluated_sets():
                for path in [*folder.evaluated_steps(name).values()][-1:]:
                    print_result(*carb.lines(name, carb.read(path)))
            print_result(f"model       {folder.model}\nreport      {report}\njudgements  {folder.carb_dir}")
            if best is not None and best < max(folder.evaluated_steps()):
                where = folder.checkpoints / f"step-{best}" if best else "the model before GRPO"
                print_result(f"better      {where}, on validation items")
            if is_randomly_initialised(folder):
                print_result(f"\n{FROM_SCRATCH}")
            print_result("\nNext:", *(f"  {line}  # {why}" for line, why in next_steps(folder)))


def cold_start(
    config: RunConfig, sft: SftSection, data: TrainingData, folder: RunFolder, signals: StopSignals, console: Console
) -> None:
    """Teach a model the output format and save it to `cold_start/model`; with `model.scratch`, make the model first."""
    if folder.cold_start.model.is_dir():
        return
    state = PartialState()
    batch = sft.per_device_train_batch_size * sft.gradient_accumulation_steps * state.num_processes
    count = sft.max_steps * batch if config.model.scratch is not None else None
    # A file's sources are mixed: a new judge's tokenizer is trained on the first. Orders of an item stay together.
    written = sorted(data.demonstrations, key=lambda each: hash_fraction(item_hash(each.item), config.seed))
    demonstrations = written or list(demonstrate(data.train, count, sft, config.seed, config.prompt.template))
    model = str(config.model.path)
    if config.model.scratch is not None:
        model = str(folder.cold_start.untrained)
        if state.is_main_process:
            texts = []
            for each in demonstrations[:_TOKENIZER_DEMONSTRATIONS]:
                for message in render_presented(each.item, each.presented, **config.prompt.arguments()):
                    texts += [message["content"], each.completion]
            parameters = make_judge(folder.cold_start.untrained, texts, config.model.scratch, config.seed)
            console.print(f"made a judge of {parameters / 1e6:.2f} M parameters")
        state.wait_for_everyone()
    left_out = over_long(config, model, data, console)
    too_long = set(map(item_hash, left_out))  # demonstrated with other labels or origins, perhaps
    if left_out and not written and config.data.weights:
        told = zip(data.sources, with_origins(data.train), strict=True)
        kept = remixed(config, (pair for pair in told if item_hash(pair[1]) not in too_long))
        items = [item for _, item in kept]
        demonstrations = list(demonstrate(items, count, sft, config.seed, config.prompt.template))
    fitting = [each for each in demonstrations if item_hash(each.item) not in too_long]
    checkpoints = Checkpoints(folder.cold_start.checkpoints, sft.save_total_limit)
    trainer = ColdStartTrainer(config, sft, model, fitting, checkpoints)
    with tracked(trainer, config, folder, TRACKED_PART), closing(LiveView(console, "cold start")) as view:
        train_stage(folder, trainer, "sft", signals, console, [view])
    seen = [demonstration.item for demonstration in data.demonstrations] or data.train
    shown = [item for item in dict.fromkeys(seen) if item_hash(item) not in too_long]
    hashes = training_hashes(shown, config.model.path, config.model.revision)
    finish = partial(write_beside, config, hashes)
    save_model(trainer, model, config.model, folder.cold_start, AutoModelForCausalLM.from_pretrained, finish)
    trainer.accelerator.free_memory()
    del trainer  # and its model, before GRPO loads one
    clear_device_cache(garbage_collection=True)  # trainer and callbacks reference one another


def grpo(
    config: RunConfig, model: str, data: TrainingData, folder: RunFolder, signals: StopSignals, console: Console
) -> None:
    """Train a model by GRPO and save it to `model`; all sets are evaluated before, at checkpoints and after."""
    left_out = over_long(config, model, data, console)
    pairs = list(zip(data.sources, data.train, strict=True))
    if left_out:
        pairs = remixed(config, [pair for pair in pairs if pair[1] not in left_out])
    train = [item for _, item in pairs]
    seen = [demonstration.item for demonstration in data.demonstrations]
    hashes = training_hashes([*train, *seen], config.model.path, config.model.revision)
    finish = partial(write_beside, config, hashes)
    best_step = partial(carb.best_step, folder)
    checkpoints = Checkpoints(folder.checkpoints, config.grpo.save_total_limit, best_step, finish)
    trainer = JudgeTrainer(config, model, train, folder, checkpoints, sources=[source for source, _ in pairs])
    evaluate = partial(evaluate_policy, config, trainer, data.sets, hashes, folder, console, signals)
    with tracked(trainer, config, folder), closing(LiveView(console, "GRPO")) as view:
        evaluations = EvalCallback(trainer, evaluate, folder, config.eval.every_steps)
        completions = CompletionsWriter(folder, trainer.rewards.take_rows, console, config.eval.every_steps)
        train_stage(folder, trainer, "grpo", signals, console, [evaluations, completions, view])
    save_model(trainer, model, config.model, folder, AutoModelForCausalLM.from_pretrained, finish)


def remixed(config: RunConfig, pairs: Iterable[tuple[str, Item]]) -> list[tuple[str, Item]]:
    """Return the items that are left, with their sources, again in the relative numbers of `data.weights`."""
    parts = grouped(dict.fromkeys(pairs), lambda pair: pair[0])
    return mix({name: [item for _, item in part] for name, part in parts.items()}, config.data.weights)


def write_beside(config: RunConfig, hashes: Iterable[str], folder: Path) -> None:
    """Write a judge's settings and the hashes of its training items beside its weights."""
    settings_of(config).save(folder)
    save_training_items(hashes, folder)


def over_long(config: RunConfig, model: str, data: TrainingData, console: Console) -> set[Item]:
    """Return (and report) the training items whose prompts exceed the `max_prompt_tokens` of their source."""
    longest = {name: source.max_prompt_tokens for name, source in config.data.sources.items()}
    if set(longest.values()) == {None}:
        check_context(config, model, data.train)
        return set()
    limits = {item: longest[name] for item, name in zip(data.train, data.sources, strict=True)}
    items = [item for item, limit in limits.items() if limit is not None]
    found = dict[Item, int]()
    for reverse in (False, True) if config.reward.both_orders else (False,):
        lengths = count_prompt_tokens(config, model, items, reverse)
        found |= {item: n for item, n in zip(items, lengths, strict=True) if n > (limits[item] or n)}
    if len(found) == len(limits):
        shortest = min(found.values())
        raise DataError(f"data.max_prompt_tokens: leaves no training item; the shortest prompt has {shortest} tokens")
    if found:
        named = ", ".join(repr(item.id) for item in [*found][:3])
        console.print(
            f"left out of training: {len(found):,} of {len(limits):,} items, whose prompts have more than "
            f"data.max_prompt_tokens, such as {named}"
        )
    check_context(config, model, [item for item in data.train if item not in found])
    return set(found)


def check_context(config: RunConfig, model: str, items: Sequence[Item]) -> None:
    """Raise a DataError if prompts of training items leave no room for a completion in the model's context."""
    with reading_model(model):
        declared = AutoConfig.from_pretrained(model, revision=config.model.revision, trust_remote_code=False)
    chosen = config.rollout.max_model_length
    limits = getattr(declared.get_text_config(), "max_position_embeddings", None), chosen
    if (most := min(filter(None, limits), default=None)) is None:
        return
    by_transformers = config.rollout.backend == "transformers"  # which does not stop there, as vLLM does
    needed = config.grpo.max_completion_length if by_transformers else 1
    # Few items are tokenised: a token is at least a byte, and prompts have all but the item's own texts in common.
    sizes = [sum(len(text.encode()) for text in (item.prompt, *item.responses)) for item in items]
    messages = render(items[0], **config.prompt.arguments())
    common = sum(len(message["content"].encode()) for message in messages) - sizes[0] + _MORE_BYTES
    largest = sorted(zip(sizes, items, strict=True), key=lambda each: -each[0])[:MAX_CHECKED]
    large = [item for size, item in largest if size + common + needed > most]
    lengths = count_prompt_tokens(config, model, large) if large else []
    if long := {item.id: n for item, n in zip(large, lengths, strict=True) if n + needed > most}:
        room = most - config.grpo.max_completion_length
        whole = f" ({room:,} leaves room for whole completions)" if room > 0 else ""
        more = ", or raise rollout.max_model_length" if chosen == most != limits[0] else ""
        more += ", or lower grpo.max_completion_length" if by_transformers else ""
        raise DataError(
            f"{len(long):,} of {len(items):,} training items have prompts that leave no room for a completion, "
            f"{needed:,} tokens, in {most:,} tokens, such as {max(long, key=long.__getitem__)!r} with "
            f"{max(long.values()):,}: set data.max_prompt_tokens to leave them out{whole}{more}"
        )


def settings_of(config: RunConfig) -> JudgeSettings:
    """Return the settings with which a judge of this run is used."""
    return JudgeSettings(
        **config.prompt.arguments(),
        seed=config.seed,
        max_completion_length=config.grpo.max_completion_length,
        dtype=config.model.dtype,
        chat_template_kwargs=dict(config.model.chat_template_kwargs),
    )


def evaluate_policy(
    config: RunConfig,
    trainer: JudgeTrainer,
    sets: Mapping[str, EvalSet],
    hashes: frozenset[str],
    folder: RunFolder,
    console: Console,
    signals: StopSignals,
    step: int,
) -> dict[str, float]:
    """Evaluate the policy on all sets: all ranks judge items, the main one writes the files and returns metrics.

    KeyboardInterrupt if a signal stops it, which a run of several processes heeds only afterwards.
    """
    journal = folder.journal(f"step-{step}.{PartialState().process_index}")
    if PartialState().num_processes > 1:  # ranks that sample together must ask alike: each begins anew
        for path in journal.parent.glob(f"{journal.stem}-*"):
            path.unlink()
    judged = judge_sets(config, trainer, sets, journal, _advance(step, console, signals))
    scored = {
        name: list(
            apply_too_long((s for i in each.items for s in judged[each.protocol, each.orders, i]), config.eval.too_long)
        )
        for name, each in sets.items()
    }  # on all ranks: it may raise
    if not PartialState().is_main_process:
        return {}
    metrics: dict[str, float] = {}
    for name in sorted(sets, key=lambda name: name == TEST):  # test items last: their file says that the step is done
        each = sets[name]
        orders = "one order for each item" if each.orders == 1 else f"{each.orders} orders"
        summary = carb.record(
            *(scored[name], each.items, folder.evaluation(name, step), f"{name} at step {step}", console),
            dataset=each.dataset,
            split=each.split,
            model=config.run.name,
            seed=config.seed,
            step=step,
            bootstrap_samples=config.eval.bootstrap_samples,
            protocol=f"{each.protocol}, greedy, {orders}",
            training=hashes,
            faulty=len(each.faulty),
        )
        metrics |= carb.metrics(name, summary)
    for path in folder.journal("*").parent.glob(f"step-{step}.*"):  # of all ranks: the tables have these judgements
        path.unlink()
    write_report(folder.path)
    failures = [each.judgement for each in scored[TEST] if each.parse_failure] if step == 0 else []
    if len(failures) > config.reward.max_parse_failure * len(scored[TEST]):
        shown = [cut(shorten_repeats(" ".join(each.completion.split())), 200) for each in failures[:2]]
        without = f"{len(failures)} of {len(scored[TEST])} test judgements before GRPO have no verdict, such as {shown}"
        console.print(f"warning: {without}. {parse_failure_causes(config, failures)}", style="yellow")
    return metrics


def _advance(step: int, console: Console, signals: StopSignals) -> Advance:
    """Return what counts the judgements of an evaluation, prints a line now and then, and heeds a signal."""
    done, printed = 0, time.monotonic()

    def advance(more: int, total: int) -> None:
        nonlocal done, printed
        done += more
        if time.monotonic() - printed >= LINE_EVERY_S:
            printed = time.monotonic()
            now = time.strftime("%H:%M:%S")
            console.print(f"{now}  evaluation at step {step}: {done:,} of {total:,} judgements")
        if signals.received and PartialState().num_processes == 1:
            raise KeyboardInterrupt

    return advance


def judge_sets(
    config: RunConfig, trainer: JudgeTrainer, sets: Mapping[str, EvalSet], journal: Path, advance: Advance
) -> dict[tuple[ProtocolKind, int, Item], list[ScoredItem]]:
    """Return the policy's judgements by protocol, orders and item; an item of several sets is judged once.

    The answers of this rank go to a journal, from which an evaluation that was stopped or killed continues.
    """
    queries = dict.fromkeys((each.protocol, each.orders, item) for each in sets.values() for item in each.items)
    mine = grouped(share_of_rank(trainer, list(queries)), lambda each: each[:2])
    found: list[tuple[tuple[ProtocolKind, int, Item], ScoredItem]] = []
    size = config.eval.batch_size if config.rollout.backend == "transformers" else _JUDGED_AT_ONCE
    with policy_engine(trainer, config.eval.batch_size) as engine:
        for (kind, orders), of_protocol in mine.items():
            protocol = JudgingProtocol(kind=kind, orders=orders, convention="strict")
            judge = Judge(engine=engine, settings=settings_of(config), protocol=protocol, chunk_size=size)
            items = [item for *_, item in of_protocol]
            requests = [judge.requests(item) for item in items]
            every = list(chain.from_iterable(requests))
            path = journal.with_stem(f"{journal.stem}-{kind}-{orders}")
            in_order = iter(query_with_journal(judge, path, judge.identity, every, advance, too_long="wrong"))
            answers = [list(islice(in_order, len(of_item))) for of_item in requests]
            judged = combine(judge, zip(items, answers, strict=True))
            found += [((kind, orders, scored.item), scored) for scored in judged]
    by_key = grouped(gather_shares(trainer, found), lambda each: each[0])
    return {key: [scored for _, scored in each] for key, each in by_key.items()}
