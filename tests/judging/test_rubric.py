"""Rubric measures: the scored span, distinct criteria, use in the analysis, and script, in any language."""

from __future__ import annotations

import time
import unicodedata
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from judging.test_frontier import HONEST, honest, item_in

from think_as_locals.judging import Evidence, parse, rubric_span, score, write
from think_as_locals.judging.formats import forced_verdict
from think_as_locals.judging.rubric import check_languages, distinct_share, script_share, weighed_share
from think_as_locals.types import LABELS, Criterion, DataError, Item, Rubric, RubricLanguage

thorough = settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])

LINES = ("- 50 | Custom | People there really do this.", "- 30 | Place | It belongs there.", "- 20 | Fit | It fits.")


def rubric_of(*lines: str) -> str:
    return "\n".join(["<rubric>", *lines, "</rubric>"])


def text_of(*lines: str) -> str:
    return f"{rubric_of(*lines)}\n<analysis>\nCustom: B.\n</analysis>\n<verdict>B</verdict>"


def span(text: str, n: int = 4) -> str | None:
    return rubric_span(parse(text, n), n)


def rubric(*criteria: tuple[str, str]) -> Rubric:
    return Rubric(tuple(Criterion(100 // len(criteria), name, description) for name, description in criteria))


# --- the span that is scored ---


def test_span_is_the_rubric_up_to_an_offered_label() -> None:
    assert span(text_of(*LINES)) == rubric_of(*LINES)
    assert span("\n " + text_of(*LINES)) == "\n " + rubric_of(*LINES)
    assert span("<think>\nB is right.\n</think>\n\n" + text_of(*LINES)) == rubric_of(*LINES)
    lines = LINES[0], "- 50 | Place | C is right."
    assert span(text_of(*lines), 2) == rubric_of(*lines)
    assert span(text_of(*lines), 3) == f"<rubric>\n{LINES[0]}\n"


LEAKS = (
    *("the answer is B", "verdict: B", "Response B wins.", "(B)", "Response_B", "**B**", "选B对", "คำตอบBถูก"),
    *("答えはＢ", "the answer is Ⓑ", "𝐁", "<verdict>", "<VERDICT>b</VERDICT>", "A response says"),
)


@pytest.mark.parametrize(
    "leak", [*(f"Place | {leak}" for leak in LEAKS), "Verdict | B is right.", "B | It belongs there."]
)
def test_span_ends_before_a_line_that_names_a_response(leak: str) -> None:
    assert span(text_of(LINES[0], f"- 30 | {leak}", LINES[2])) == f"<rubric>\n{LINES[0]}\n"
    assert span(text_of(f"- 30 | {leak}", LINES[0], LINES[2])) is None


@pytest.mark.parametrize(
    "clean", ["Be brief.", "BBC says so.", "Vitamin B12.", "Á la carte, ÉB.", "E is no label.", "是的"]
)
def test_label_inside_a_word_or_not_offered_does_not_cut_the_span(clean: str) -> None:
    lines = LINES[0], f"- 50 | Place | {clean}"
    assert span(text_of(*lines)) == rubric_of(*lines)


@pytest.mark.parametrize("language", HONEST)
def test_span_keeps_honest_rubrics_in_full(language: str) -> None:
    text = honest(language)
    assert span(text, 8) == text.partition("\n<analysis>")[0]


@pytest.mark.parametrize(
    "text",
    [
        *("no rubric", "<rubric>\n</rubric>", "<rubric>\nnot a criterion\n</rubric>", "<rubric>\n" + LINES[0]),
        "B is right. " + text_of(*LINES),
        "<analysis>\nB\n</analysis>\n<rubric>\n- 100 | Custom | Done.\n</rubric>\n<verdict>B</verdict>",
        text_of(*LINES) + text_of(*LINES),
    ],
)
def test_span_is_none_without_a_rubric_at_the_start(text: str) -> None:
    assert span(text) is None


tags = ["<rubric>", "</rubric>", "<verdict>", "</verdict>", "<analysis>"]
pieces = st.sampled_from([*tags, "- 50 | Custom | Done.", "- 10 | B | x", "word", *"\n| ABCＢé7แ是.\u0301"])
texts = st.lists(st.one_of(pieces, st.text(max_size=6)), max_size=40).map("".join)
cells = texts.map(lambda text: text.replace("\n", "").replace("|", ""))
wrapped = st.lists(cells, max_size=6).map(lambda rows: text_of(*(f"- 10 | name | {row}" for row in rows)))


@thorough
@given(st.one_of(texts, wrapped), st.integers(2, 8))
def test_span_is_a_prefix_without_labels(text: str, n: int) -> None:
    found = span(text, n)
    if found is None:
        return
    assert text.startswith(found)
    assert found.count("<rubric>") == 1
    assert found.endswith(("</rubric>", "\n"))
    assert "- " in found
    body = found.partition("<rubric>")[2].removesuffix("</rubric>")
    words = "".join(c if c.isascii() else unicodedata.normalize("NFKC", c) for c in body)
    # Whatever is no letter, mark or digit separates words; so do letters of scripts without case.
    letters = [c if c.isdigit() or c.lower() != c.upper() or unicodedata.combining(c) else " " for c in words]
    assert not set("".join(letters).split()) & set(LABELS[:n])
    assert "verdict>" not in body
    assert "analysis>" not in body


@thorough
@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=5), st.text(max_size=40))
def test_text_after_a_rubric_does_not_change_its_span(lines: list[str], tail: str) -> None:
    if "rubric>" not in tail:
        assert span(rubric_of(*lines) + tail) == rubric_of(*lines)


@pytest.mark.parametrize("piece", ["ab", "a to ", "é", "\u0316\u0301", "1"])
def test_span_takes_linear_time(piece: str) -> None:
    judgement = parse(text_of(f"- 10 | x | z{piece * 75_000}"), 8)
    began = time.process_time()
    assert rubric_span(judgement, 8) is not None
    assert time.process_time() - began < 2


def test_forced_verdict_matches_the_end_of_a_completion() -> None:
    full = write(rubric(("Custom", "x"), ("Place", "y")), "A: no.", 1)
    assert full.endswith("</analysis>" + forced_verdict(1))
    assert [forced_verdict(i) for i in range(8)] == [f"\n<verdict>{label}</verdict>" for label in LABELS]
    whole, cut = span(text_of(*LINES)) or "", span(text_of(LINES[0], "- 50 | B | x")) or ""
    assert forced_verdict(1, whole) == forced_verdict(1)
    assert cut + forced_verdict(1, cut) == f"<rubric>\n{LINES[0]}\n</rubric>\n<verdict>B</verdict>"


# --- quality ---

DISTINCT = {language: HONEST[language][0] for language in ("en", "th", "zh", "ja", "ar")}


@pytest.mark.parametrize("language", DISTINCT)
def test_distinct_share_counts_criteria_that_do_not_repeat_earlier_ones(language: str) -> None:
    first, second, third = DISTINCT[language]
    assert distinct_share(rubric(first, second, third)) == 1.0
    assert distinct_share(rubric(first, second, (f"{first[0]}!", f"1 {first[1]}"))) == pytest.approx(2 / 3)
    assert distinct_share(rubric(first, first, first)) == pytest.approx(1 / 3)
    assert distinct_share(rubric(first, (".", "?"))) == 0.5


@pytest.mark.parametrize(
    ("analysis", "weighed"),
    [
        ("A: Chinese. B: Japanese. C: the wai, as in Thailand.", 3),
        ("- **A** is Chinese\n- **B** is Japanese\n- **C** is the Thai wai", 3),
        ("Custom: A is Chinese, B Japanese. Respect: C shows it, as Thai people do.", 3),
        ("A: Chinese custom. B: A bow, which people there rarely make. C: the greeting.", 3),  # an article
        ("A: Chinese. C: the wai of Thailand.", 2),
        ("A: no. B: no. C: yes.", 2),
        ("A: a Thai greeting. B: a Thai greeting. C: a Thai greeting.", 1),
        ("Thai people make the wai.", 0),  # of no response
        ("ABC: Thai people make the wai.", 0),
        *((None, 0), ("", 0), ("\u200b", 0), ("A", 0), ("A!", 0)),
    ],
)
def test_weighed_share_counts_responses_that_the_analysis_discusses(analysis: str | None, weighed: int) -> None:
    assert weighed_share(analysis, item_in("en").responses) == pytest.approx(weighed / 3)


def test_weighed_share_ignores_quotations() -> None:
    responses = item_in("en").responses
    quotes = [f"{label}: {text}" for label, text in zip("ABC", responses, strict=True)]
    assert weighed_share(" ".join(quotes), responses) == 0.0
    assert weighed_share(" Chinese. ".join([*quotes, ""]), responses) == 1.0


def test_shares_take_linear_time() -> None:
    began = time.process_time()
    weighed_share("A: word B " * 20_000, ("x", "y"))
    distinct_share(rubric(*[(f"{n} name", "word " * 50_000) for n in range(7)]))
    assert time.process_time() - began < 2


@pytest.mark.parametrize("language", DISTINCT)
def test_script_share_distinguishes_scripts(language: str) -> None:
    judged = rubric(*DISTINCT[language])
    assert script_share(judged, language) > 0.98
    for other in set(DISTINCT) - {language, "zh", "ja"}:  # Japanese writes Chinese characters too
        assert script_share(judged, other) == 0.0
    assert script_share(judged, {"zh": "zh-Hant", "en": "de"}.get(language, language)) > 0.98


def test_script_share_counts_letters() -> None:
    assert script_share(rubric(("abcd", "กขคง")), "th") == 0.5
    assert script_share(rubric(("1", "2")), "th") == 0.0


@pytest.mark.parametrize("language", ["zz", "english", "???", "en_US"])
def test_check_languages_rejects_languages_without_a_known_script(language: str, item: Item) -> None:
    with pytest.raises(DataError, match=r"item 'greeting-th': language .*; or set prompt\.rubric_language=any"):
        check_languages([replace(item, language=language)])
    check_languages([item])


def test_rubric_quality_is_the_product_of_its_parts(item: Item) -> None:
    def quality(text: str, language: RubricLanguage) -> float:
        return score(parse(text, 4), item, evidence=Evidence(rubric_language=language)).parts["rubric_quality"]

    judged = rubric(*DISTINCT["en"])
    lines = [f"{label}: {text}" for label, text in zip("ABCD", ("elders", "monks", "tea", "rice"), strict=True)]
    analysis = "\n".join(lines)
    full = write(judged, analysis, 0)
    assert [quality(full, language) for language in get_args(RubricLanguage)] == [1.0, 1.0, 1.0]
    assert quality(write(judged, lines[0], 0), "any") == 1 / 4
    twice = rubric(DISTINCT["en"][0], DISTINCT["en"][0], DISTINCT["en"][1])
    assert quality(write(twice, analysis, 0), "en") == pytest.approx(2 / 3)
    thai = write(rubric(*DISTINCT["th"]), analysis, 0)
    assert [quality(thai, language) for language in ("en", "any")] == [0.0, 1.0]
    for text in ("", "<rubric>\n?\n</rubric>", write(rubric(*DISTINCT["en"][:2]), analysis, 0)):
        assert quality(text, "any") == 0.0
