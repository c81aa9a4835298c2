"""The grammar, written once: what `write` renders is what `parse` reads and the prompt shows."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from think_as_locals.judging import RULES, parse, render, write
from think_as_locals.types import LABELS, Criterion, Item, Rubric

quick = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])

# A cell of a rubric line: no bar, no line end, no tag; blanks around it are not part of it.
cells = (
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="|<>\n"), min_size=1, max_size=25)
    .map(str.strip)
    .filter(bool)
)
analyses = (
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>"), min_size=1, max_size=80)
    .map(str.strip)
    .filter(bool)
)


@st.composite
def rubrics(draw: st.DrawFn) -> Rubric:
    names = draw(st.lists(cells, min_size=3, max_size=7, unique_by=str.casefold))
    cuts = sorted(draw(st.lists(st.integers(1, 99), min_size=len(names) - 1, max_size=len(names) - 1, unique=True)))
    weights = [high - low for low, high in zip([0, *cuts], [*cuts, 100], strict=True)]
    return Rubric(tuple(Criterion(weight, name, draw(cells)) for weight, name in zip(weights, names, strict=True)))


@quick
@given(rubrics(), analyses, st.integers(2, 8), st.data())
def test_what_is_written_parses_back_to_the_same(rubric: Rubric, analysis: str, n: int, data: st.DataObject) -> None:
    verdict = data.draw(st.integers(0, n - 1))
    judgement = parse(write(rubric, analysis, verdict), num_responses=n)
    assert judgement.issues == ()
    assert judgement.rubric == rubric
    assert judgement.verdict == verdict
    assert judgement.analysis is not None
    assert judgement.analysis.strip() == analysis


@pytest.mark.parametrize("cell", ["Custom | place", "Custom\nPlace"])
@pytest.mark.parametrize("place", ["name", "description"])
def test_what_would_not_parse_back_is_not_written(cell: str, place: str) -> None:
    cells = {"name": "Custom", "description": "Done there."} | {place: cell}
    rubric = Rubric((Criterion(50, **cells), Criterion(30, "Place", "y"), Criterion(20, "Words", "z")))
    with pytest.raises(ValueError, match=r"^got 'Custom.*expected"):
        write(rubric, "A: yes.", 0)


@pytest.mark.parametrize("n", range(2, 9))
def test_every_label_on_offer_can_be_the_verdict_and_the_next_one_cannot(n: int) -> None:
    rubric = Rubric((Criterion(50, "Custom", "x"), Criterion(30, "Place", "y"), Criterion(20, "Words", "z")))
    assert [parse(write(rubric, "A: yes.", i), n).verdict for i in range(n)] == list(range(n))
    if n < len(LABELS):
        beyond = parse(write(rubric, "A: yes.", n), n)
        assert (beyond.verdict, beyond.issues) == (None, ("verdict_label",))


def test_the_prompt_shows_the_grammar_that_the_parser_reads() -> None:
    item = Item(
        id="1",
        prompt="?",
        responses=("x", "y"),
        best=0,
        culture="TH",
        language="en",
        domain="value",
        group="g",
        source="mine",
    )
    shown = render(item)[0]["content"]
    shown = shown[shown.index("<rubric>") : shown.index("</verdict>") + len("</verdict>")]
    line = "- WEIGHT | NAME | DESCRIPTION"
    lines = "\n".join(f"- {weight} | Criterion {weight} | What counts." for weight in (50, 30, 20))
    filled = shown.replace(line, lines).replace("TEXT", "A: no.").replace("LABEL", "B")
    assert parse(filled, num_responses=2).issues == ()
    assert parse(filled, num_responses=2).verdict == 1


def test_rules_have_distinct_names() -> None:
    assert len(set(RULES)) == len(RULES) > 0
