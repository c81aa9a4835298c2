"""A judge as a scorer of inspect-ai: any task's completions, each in a duel with its target. Statistics are inspect's.

    inspect eval TASK.py --model openai/gpt-4.1 --model-role judge=vllm/owner/judge
    inspect score LOG.eval --scorer think_as_locals/judge_duel --model-role judge=vllm/owner/judge

The judge is a model of inspect's with the role `judge`; prompt and parser are ours. It needs no torch.
"""

from __future__ import annotations

from inspect_ai.model import (
    ChatMessage,
    ChatMessageSystem,
    ChatMessageUser,
    GenerateConfig,
    Model,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState
from inspect_ai.util import collect

from think_as_locals.integrations.conversations import question
from think_as_locals.judging import CHAT_TOKENS, read_verdict, render_shown, reserved_marks
from think_as_locals.models.generative import JudgeSettings
from think_as_locals.models.group_reward import NEUTRAL, ROUND_ROBIN, item_of
from think_as_locals.models.policy_rows import policy_rows
from think_as_locals.types import ServerError

_DEFAULTS = JudgeSettings()


@scorer(metrics=[mean(), stderr()])
def judge_duel(
    model: str | Model | None = None,
    prompt: str = _DEFAULTS.prompt,
    max_completion_length: int = _DEFAULTS.max_completion_length,
) -> Scorer:
    """The share of a duel with the target response that a completion won: 1, or 0, or 1/2 where it won one order.

    1/2 as well where both say the same, 0 where the completion says nothing. A duel of which neither order can be read
    leaves the sample unscored. `culture` (ISO 3166) and `language` are read of a sample's metadata.

    Args:
        model: The judge; `None` for the one with the role `judge`.
        prompt: Name of the template that it was trained with.
        max_completion_length: In tokens.
    """

    async def score(state: TaskState, target: Target) -> Score:
        judge = get_model(model) if model is not None else get_model(role="judge", required=True)
        turns = [{"role": message.role, "content": message.text} for message in _input(state)]
        culture, language = ([state.metadata.get(name)] for name in ("culture", "language"))
        (row,) = policy_rows([question(turns)], [state.output.completion], culture, language, [target.text])
        if not row.text or row.text == row.reference:
            return Score(value=NEUTRAL if row.text else 0.0, answer=row.text)
        asked = ROUND_ROBIN.requests(item_of(row.question, (row.text, row.reference)), _DEFAULTS.seed)
        config = GenerateConfig(temperature=0, max_tokens=max_completion_length)
        untrusted = (*CHAT_TOKENS, *reserved_marks(prompt))
        shown = [render_shown(request.item, request.responses, prompt, untrusted) for request in asked]
        outputs: list[ModelOutput] = await collect(*(judge.generate(messages(one), config=config) for one in shown))
        read = [read_verdict(prompt, each.completion, 2, ended(each), "strict").verdict for each in outputs]
        winners = [request.order[verdict] for request, verdict in zip(asked, read, strict=True) if verdict is not None]
        said = "\n\n".join(output.completion for output in outputs)
        if not winners:
            return Score.unscored(reason="unreadable", answer=row.text, explanation=said)
        return Score(value=winners.count(0) / len(winners), answer=row.text, explanation=said)

    return score


def messages(conversation: list[dict[str, str]]) -> list[ChatMessage]:
    """What a judge is asked, as inspect has it."""
    roles = {"system": ChatMessageSystem, "user": ChatMessageUser}
    return [roles[message["role"]](content=message["content"]) for message in conversation]


def ended(output: ModelOutput) -> str:
    """How a completion ended: `stop` by itself, else `length`.

    Raises:
        ServerError: the provider does not say.
    """
    if output.stop_reason == "unknown":
        raise ServerError(
            f"{output.model}: its provider does not say how a completion ended, and one that was cut off may end in a "
            "quoted verdict: use a provider that does (vllm/, openai-api/), not hf/"
        )
    return "stop" if output.stop_reason == "stop" else "length"


def _input(state: TaskState) -> list[ChatMessage]:
    return [ChatMessageUser(content=state.input)] if isinstance(state.input, str) else list(state.input)
