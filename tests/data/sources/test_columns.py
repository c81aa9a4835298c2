"""Rows of responses in columns of any names: your own, and the data sets that are only a file in `conf/data`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from data.sections import data_section
from data.tables import a_row, carb_row, fault_names, outcome_of, write
from items import make_item

from think_as_locals.config.schema import DataSection
from think_as_locals.data import read
from think_as_locals.data.rows import Outcome
from think_as_locals.data.sources import jsonl, recognise
from think_as_locals.data.sources.columns import Columns
from think_as_locals.data.validate import item_outcomes, validate
from think_as_locals.types import DataError, DataWarning

HH = "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: How do I greet?\n\nAssistant:"
PAIR = {"prompt": "What is for breakfast?", "chosen": "Rice porridge.", "rejected": "Toast and jam."}
AB = {"prompt": "How do I boil an egg?", "response_a": "In water.", "response_b": "No idea.", "winner": "model_a"}
HELPSTEER: dict[str, Any] = {"domain": "multilingual", "language": "korean", "overall_preference": -2} | (
    {"context": [{"role": "user", "content": "한국의 아침 식사는?"}], "response1": "밥과 국입니다.", "response2": "빵."}
)
M_RB: dict[str, Any] = {"id": 12, "language": "zho_Hans", "prompt": "怎么煮鸡蛋？", "source": "alpacaeval-easy"} | (
    {"chosen": "放进开水里。", "rejected": "我不知道。", "category": "Chat Hard", "chosen_model": "m"}
)
CRISP: dict[str, Any] = {"question": "How do I greet an elder?", "culture": "Thai"} | (
    {"appropriate": "With a wai.", "generic": "Politely.", "opposite": "By patting the head."}
)
INCLUDE = {"question": "ใคร?", **{f"option_{x}": x for x in "abcd"}, "answer": 2} | (
    {"language": "Thai", "country": "Thailand", "domain": "Social Science"}
)
ROWS = {"rows": PAIR, "ab": AB, "helpsteer3": HELPSTEER, "m_rewardbench": M_RB, "crisp_rm": CRISP, "include": INCLUDE}
TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "?"}]


def outcome(folder: Path, name: str, changes: dict[str, Any], *overrides: str) -> Outcome:
    return outcome_of(folder, ROWS[name] | changes, f"data={'rows' if name == 'ab' else name}", *overrides)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("rows", {}, {"id": "rows/rows.jsonl-1", "culture": None, "language": "en", "domain": "rows", "best": 0}),
        ("rows", {"id": 31, "subset": "easy"}, {"id": "rows/en/easy/31", "group": "easy/31", "domain": "easy"}),
        # A translation is in the question group of its original.
        ("rows", {"id": 31, "language": "deu_Latn"}, {"id": "rows/de/rows/31", "group": "rows/31", "language": "de"}),
        ("rows", {"culture": "Thai", "group": 7}, {"culture": "TH", "group": "7"}),
        ("rows", {"country": "Chile"}, {"culture": "CL"}),
        ("rows", {"rejected": ["Toast.", "Jam."]}, {"responses": (PAIR["chosen"], "Toast.", "Jam.")}),
        ("rows", {"chosen": "[see below]"}, {"responses": ("[see below]", PAIR["rejected"])}),
        # An answer that looks like a list is a text.
        *(("rows", {"chosen": one, "rejected": other}, {"responses": (one, other)})
          for one, other in (("5", "[1, 2, 3]"), ("['a']", "['b']"))),
        ("rows", {"rejected": ["Toast.", "Toast."]}, {"responses": (PAIR["chosen"], "Toast.")}),
        ("rows", {"prompt": '[{"a": 1}]'}, {"prompt": '[{"a": 1}]'}),
        *(("ab", {"winner": None, column: "A"}, {"best": 0}) for column in ("preference", "preferred", "label")),
        *(("ab", {"winner": x}, {"best": 0}) for x in ("A", " response_a ", "response_1", "output_1", "A>>B", "B<A")),
        *(("ab", {"winner": x}, {"best": 1}) for x in ("b", "model_b", "Answer_2", "B>A", "A<B")),
        # A label names a column, whichever others are empty.
        *(("ab", {"response_a": None, "response_c": "Why?", "winner": x},
           {"responses": ("No idea.", "Why?"), "best": 0}) for x in ("B", "response_b", "answer_2")),
        ("include", {"option_a": None}, {"responses": ("b", "c", "d"), "best": 1}),
        ("include", {"option_d": "b", "answer": 0}, {"responses": ("a", "b", "c"), "best": 0}),  # wrong ones are one
        ("rows", {"prompt": json.dumps(TURNS[:1], indent=1)}, {"prompt": "Hi"}),
        ("m_rewardbench", {}, {"id": "m_rewardbench/zh/Chat Hard/alpacaeval-easy/12", "group": "alpacaeval-easy/12"}),
        ("crisp_rm", {}, {"responses": ("With a wai.", "Politely.", "By patting the head."), "culture": "TH"}),
        ("crisp_rm", {"culture": None, "country": "Kabylia", "id": 3}, {"id": "crisp_rm/en/crisp_rm/Kabylia/3"}),
        ("crisp_rm", {"category": "food", "language": "Thai"}, {"domain": "food", "language": "th"}),
        ("crisp_rm", {"scenario": "At work.", "norm": "Elders first."},
         {"prompt": "At work.\n\nHow do I greet an elder?", "group": "Thai/Elders first."}),
        *(("include", {"answer": n}, {"responses": tuple("abcd"), "best": n, "culture": "TH"}) for n in range(4)),
        ("include", {"answer": 2.0}, {"best": 2, "language": "th", "domain": "Social Science"}),
        ("helpsteer3", {}, {"prompt": "한국의 아침 식사는?", "language": "ko", "domain": "multilingual"}),
        *(("helpsteer3", {"overall_preference": n}, {"best": int(n > 0)}) for n in (-3, -1, 1, 3)),
        ("helpsteer3", {"context": TURNS}, {"prompt": "user: Hi\n\nassistant: Hello\n\nuser: ?"}),
        ("helpsteer3", {"domain": "code", "language": "python"}, {"language": "en"}),
    ],
)  # fmt: skip
def test_valid_row_becomes_an_item(
    tmp_path: Path, name: str, changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = outcome(tmp_path, name, changes)
    (item,) = found.items
    assert not found.faults
    assert {field: getattr(item, field) for field in expected} == expected
    assert item.source == ("rows" if name == "ab" else name)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("rows", {"chosen": PAIR["rejected"]}, ["invalid_item"]),
        ("rows", {"prompt": ["a"], "rejected": ""}, ["model_type", "blank"]),
        ("rows", {"prompt": [{"role": "tool", "content": "x"}]}, ["literal_error"]),
        ("rows", {"language": "xx_Xxxx", "culture": "Thialand"}, ["unknown_culture", "unknown_language"]),
        ("rows", {"prompt": None, "chosen": f"{HH} A wai.", "rejected": "\n\nHuman: No\n\nAssistant: So"}, ["missing"]),
        *(("rows", {"culture": name}, ["unknown_culture"]) for name in ("N/A", "nan", "-", "hill folk\n\nSay B")),
        *(("rows", {"culture": name}, ["unknown_culture"]) for name in ("x\u202ey", "y" * 101)),
        # Some count responses from 0, some from 1: data.labels says so.
        *(("ab", {"winner": value}, ["unknown_label"]) for value in (1, "0", "first", "C")),
        *(("ab", {"winner": x}, ["tie"]) for x in ("draw", "tie (bothbad)", "both_bad", "both_good", "A=B")),
        ("ab", {"winner": "tie (inconsistent)"}, ["tie"]),  # of MT-Bench's GPT-4, in both orders
        *(("ab", {"response_a": None, "response_c": "Why?", "winner": x}, ["unknown_label"]) for x in ("A", "model_a")),
        ("include", {"option_a": None, "answer": 0}, ["unknown_label"]),
        ("ab", {"winner": None}, ["missing"]),
        ("crisp_rm", {"scenario": "At work.", "question": None}, ["missing"]),
        *(("include", {"answer": value}, ["unknown_label"]) for value in (4, 1.5, "E")),
        ("helpsteer3", {"overall_preference": 0}, ["tie"]),
        *(("helpsteer3", {"overall_preference": value}, ["unknown_label"]) for value in (4, 0.5, "much", True)),
        ("helpsteer3", {"overall_preference": None, "context": [TURNS[0] | {"content": " "}]}, ["blank", "missing"]),
    ],
)
def test_invalid_row_reports_its_faults(
    tmp_path: Path, name: str, changes: dict[str, Any], expected: list[str]
) -> None:
    found = outcome(tmp_path, name, changes)
    assert sorted(fault_names(found)) == sorted(expected)
    assert (found.items, found.imported) == ((), False)


def test_columns_and_labels_of_the_configuration_are_read(tmp_path: Path) -> None:
    panda_lm = {"instruction": "Is it?", "response1": "yes", "response2": "no", "label": 1}
    names = "{prompt: instruction, responses: [response1, response2], best: label}"
    an_empty_one = {"question": "Is it?", "r1": None, "r2": "yes", "r3": "no", "pick": "R2"}
    for row, columns, labels in (
        (panda_lm, names, "{1: a, 2: b, 0: tie}"),
        (an_empty_one, "{prompt: question, responses: [r1, r2, r3], best: pick}", "null"),
    ):
        (item,) = outcome_of(tmp_path, row, "data=rows", f"data.columns={columns}", f"data.labels={labels}").items
        assert (item.prompt, item.responses, item.best) == ("Is it?", ("yes", "no"), 0)


CONVERSATIONS = {
    f"conversation_{x}": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": text}]
    for x, text in (("a", "first"), ("b", "second"))
}


@pytest.mark.parametrize(
    ("name", "row", "column", "labels"),
    [  # as published
        ("LLMBar", {"input": "Why?", "output_1": "first", "output_2": "second"}, "label", (1, 2)),
        ("PandaLM", {"instruction": "Say:", "input": "Why?", "response1": "first", "response2": "second"},
         "annotator1", (1, 2, 0)),
        ("Auto-J", {"prompt": "Why?", "response 1": "first", "response 2": "second"}, "label", (0, 1, 2)),
        ("JudgeBench", {"question": "Why?", "response_A": "first", "response_B": "second"}, "label", ("A>B", "B>A")),
        ("MT-Bench", CONVERSATIONS, "winner", ("model_a", "model_b", "tie")),
    ],
)  # fmt: skip
def test_columns_and_labels_in_the_guide_are_those_of_the_data_sets(
    tmp_path: Path, name: str, row: dict[str, Any], column: str, labels: tuple[Any, ...]
) -> None:
    guide = (ROOT / "think_as_locals" / "data" / "README.md").read_text(encoding="utf-8").splitlines()
    cells = next(line for line in guide if line.startswith(f"| {name}")).replace("`", "").split("|")
    keys = [f"data.columns={cells[2].strip()}", f"data.labels={cells[3].strip() or 'null'}"]
    for label, best in zip(labels, (0, 1, None), strict=False):
        items = outcome_of(tmp_path, row | {column: label}, "data=rows", *keys).items
        assert [(item.responses, item.best) for item in items] == [(("first", "second"), best)] * (best is not None)
        assert all(item.prompt.endswith("Why?") for item in items)


ASKED, RICE, TOAST = (
    {"role": role, "content": text}
    for role, text in (("user", PAIR["prompt"]), ("assistant", "Rice."), ("assistant", "Toast."))
)
SYSTEM = {"role": "system", "content": "Be kind."}
MORE = [ASKED, RICE, {"role": "user", "content": "And in winter?"}]


ASKS = PAIR["prompt"]
CONVERSATIONS: dict[str, tuple[Any, list[Any], str]] = {  # the prompt, what both responses begin with, what is read
    "explicit": ([ASKED], [], ASKS),
    "implicit": (None, [ASKED], ASKS),
    "ultrafeedback": (ASKS, [ASKED], ASKS),
    "spaces": (f"{ASKS} \n", [ASKED], ASKS),
    "another before": ("Hi", [ASKED], f"user: Hi\n\nuser: {ASKS}"),
    "system before": ([SYSTEM, ASKED], [ASKED], f"system: Be kind.\n\nuser: {ASKS}"),
    "repeated": ([ASKED], [RICE, ASKED], f"user: {ASKS}\n\nassistant: Rice.\n\nuser: {ASKS}"),
    "several": (ASKS, MORE, f"user: {ASKS}\n\nassistant: Rice.\n\nuser: And in winter?"),
}


@pytest.mark.parametrize(("asked", "before", "prompt"), CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_trl_conversations_become_prompt_and_responses(
    tmp_path: Path, asked: Any, before: list[Any], prompt: str, suffix: str
) -> None:
    row = {"chosen": [*before, RICE], "rejected": [*before, TOAST]} | ({"prompt": asked} if asked else {})
    path = write(tmp_path / f"rows{suffix}", [row])
    assert recognise(str(path)) == ["data=rows"]
    (item,) = read(data_section(source="rows", path=str(path)))
    assert (item.prompt, item.responses) == (prompt, ("Rice.", "Toast."))
    assert "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in item.messages).endswith(prompt)


def test_conversations_part_where_they_first_differ(tmp_path: Path) -> None:
    (item,) = outcome(tmp_path, "rows", {"chosen": [*MORE, RICE], "rejected": [ASKED, TOAST]}).items
    responses = "Rice.\n\nuser: And in winter?\n\nassistant: Rice.", "Toast."
    assert (item.prompt, item.responses) == (PAIR["prompt"], responses)
    other = {"role": "user", "content": "Lunch?"}
    found = outcome(tmp_path, "rows", {"chosen": [ASKED, RICE], "rejected": [other, TOAST]})
    assert not found.items  # they answer different prompts
    assert found.faults[0].detail.startswith("chosen: ")


FIRST = [ASKED, RICE]
PRINTED = "[{'role': 'user', 'content': 'Q'}\n {'role': 'assistant', 'content': 'A'}]"  # by pandas


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"chosen": PRINTED, "rejected": PRINTED}, ["messages"] * 2),
        ({"prompt": PRINTED, "chosen": FIRST, "rejected": [ASKED, TOAST]}, ["messages"]),
        ({"chosen": [*FIRST, ASKED], "rejected": [ASKED, TOAST, ASKED]}, ["messages"] * 2),
        ({"chosen": [ASKED, {"role": "tool", "content": "x"}, RICE], "rejected": FIRST}, ["messages"] * 2),
        ({"chosen": [{"from": "gpt", "value": "Rice."}]}, ["messages"]),
        ({"chosen": [{"content": "Rice.", "role": "Assistant"}]}, ["messages"]),
        ({"chosen": FIRST, "rejected": [ASKED, TOAST | {"content": None}]}, ["messages"] * 2),
        ({"chosen": FIRST, "rejected": [[ASKED, TOAST], [ASKED, TOAST]]}, ["messages"] * 2),
        ({"prompt": [SYSTEM], "chosen": FIRST, "rejected": [ASKED, TOAST]}, []),
        ({"chosen": [{"name": "Ann", "role": "cook"}], "rejected": [{"from": "Rome", "to": "Bari"}]}, []),
    ],
)
def test_messages_in_a_cell_are_read_or_a_fault(tmp_path: Path, changes: dict[str, Any], expected: list[str]) -> None:
    path = write(tmp_path / "rows.csv", [PAIR | changes])
    (found,) = item_outcomes(rows_of(path))
    assert (fault_names(found), len(found.items)) == (expected, not expected)
    assert all(turn["role"] == "system" for item in found.items for turn in item.messages[:-1])


def test_messages_are_no_prompt_of_carb_nor_a_part_of_a_text(tmp_path: Path) -> None:
    path = write(tmp_path / "carb.csv", [carb_row(1) | {"prompt": [ASKED]}])
    (found,) = item_outcomes(data_section(source="carb", path=str(path)))
    assert fault_names(found) == ["messages"]
    for given in ({"a": [ASKED], "b": "And why?"}, {"a": "Say:", "b": [ASKED]}):
        for suffix in (".csv", ".jsonl"):
            path = write(tmp_path / f"rows{suffix}", [given | {"chosen": "Rice.", "rejected": "Toast."}])
            (found,) = item_outcomes(rows_of(path, columns={"prompt": ["a", "b"]}))
            assert fault_names(found) == ["model_type"] * 2


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_hh_dialogues_are_split_into_their_common_turns_and_the_answers(tmp_path: Path, end: str) -> None:
    dialogue, other = (text.replace("\n", end) for text in (HH, "\n\nHuman: No\n\nAssistant: So"))
    for prompt in (None, "How do I greet?"):
        row = {"prompt": prompt, "chosen": f"{dialogue} A wai.", "rejected": f"{dialogue} A bow."}
        (item,) = outcome(tmp_path, "rows", row).items
        assert item.prompt == "user: Hi\n\nassistant: Hello\n\nuser: How do I greet?"
        assert item.responses == ("A wai.", "A bow.")
    for rest in (" A wai.\n\nHuman: Thanks", " A wai.\n\nHuman: So?\n\nAssistant: Yes."):  # no answer to one prompt
        row = {"chosen": dialogue + rest.replace("\n", end), "rejected": other}
        assert fault_names(outcome(tmp_path, "rows", row)) == ["dialogue"]


def test_long_white_space_takes_no_quadratic_time(tmp_path: Path) -> None:
    texts = {name: f"Human: hi{gap * 500_000}{name}" for name, gap in (("chosen", "\n"), ("rejected", "\r\n"))}
    assert outcome(tmp_path, "rows", texts).imported


HH_TURNS = [("user", "Hi"), ("assistant", "Hello"), ("user", "How do I greet?")]


@pytest.mark.parametrize(
    ("prompt", "turns"),
    [
        (HH, HH_TURNS),
        (HH.replace("\n", "\r\n"), HH_TURNS),
        (HH.replace("\n", "\r\n").removesuffix("\r\n\r\nAssistant:"), HH_TURNS),
        ("\n\nHuman: How do I greet?\n\nAssistant:", []),
        ("Human: is it a name?", []),  # a text that only resembles them
    ],
    ids=["lines", "CRLF", "without Assistant:", "a single turn", "a name"],
)
def test_hh_prompts_are_read_in_their_turns(tmp_path: Path, prompt: str, turns: list[tuple[str, str]]) -> None:
    (item,) = outcome(tmp_path, "rows", {"prompt": prompt, "chosen": " A wai.", "rejected": " A bow."}).items
    assert item.turns == tuple(turns)
    assert (item.prompt, item.messages[-1]["content"]) != (prompt, prompt) or not prompt.endswith("Assistant:")


def test_text_parts_are_joined(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "Ri"}, {"type": "text", "text": "ce."}]
    for chosen in (parts, [{"role": "user", "content": PAIR["prompt"]}, {"role": "assistant", "content": parts}]):
        other = "Toast." if chosen is parts else [ASKED, TOAST]
        (item,) = outcome(tmp_path, "rows", PAIR | {"chosen": chosen, "rejected": other}).items
        assert (item.prompt, item.responses) == (PAIR["prompt"], ("Rice.", "Toast."))
    path = write(tmp_path / "parts.csv", [PAIR | {"chosen": json.dumps(parts), "rejected": "Toast."}])
    (item,) = read(data_section(source="rows", path=str(path)))
    assert item.responses == ("Rice.", "Toast.")
    row = {"prompt": [{"type": "text", "text": "Br"}, {"type": "text", "text": "eakfast?"}], "chosen": parts}
    (item,) = outcome(tmp_path, "rows", row | {"rejected": [{"type": "text", "text": "Toast."}]}).items
    assert (item.prompt, item.responses) == ("Breakfast?", ("Rice.", "Toast."))


@pytest.mark.parametrize(
    ("given", "culture", "suggested"),
    [
        *((code, code, "") for code in ("TH", "NO", "CA-QC", "IN-AS", "Quebec", "Québec", "Arab", "Romani people")),
        *((name, "TH", "") for name in ("Thailand", "Thai", "THA", "ไทย")),
        *((wrong, None, near) for wrong, near in (("Thialand", "TH"), ("UK", "GB"), ("th", "TH"), ("ca-qc", "CA-QC"))),
        *((wrong, None, "") for wrong in ("XX", "qq", "CA-XX", "en-US")),
    ],
)
def test_culture_is_a_name_or_code_and_unknown_codes_are_rejected(
    given: str, culture: str | None, suggested: str
) -> None:
    columns = Columns.of(data_section(source="rows", path="x"))
    row = json.loads(json.dumps(jsonl.fields(make_item(culture=given))))
    for found in (Outcome.of(a_row(PAIR | {"culture": given}), columns.items), Outcome.of(a_row(row), jsonl.items)):
        assert [item.culture for item in found.items] == ([culture] if culture else [])
        assert fault_names(found) == ([] if culture else ["unknown_culture"])
        assert all((f"did you mean {suggested!r}" in each.detail) == bool(suggested) for each in found.faults)


def test_columns_of_other_names_are_named_in_faults() -> None:
    columns = {"prompt": "question", "responses": ["one", "two"], "best": "better"}
    data = data_section(source="rows", path="x", columns=columns, labels={"1": "a", "2": "b"})
    row = {"question": "Greeting?", "one": "A bow.", "two": "A wai.", "better": 2}
    for empty, detail in (("two", "got 2; two is empty"), ("question", "Field required, in column question")):
        (fault,) = Outcome.of(a_row(row | {empty: None}), Columns.of(data).items).faults
        assert detail in fault.detail


def rows_of(path: Path, **changes: Any) -> DataSection:
    return data_section(source="rows", path=str(path), **changes)


def a_pair(number: int, **more: Any) -> dict[str, Any]:
    return PAIR | {"prompt": f"What do people at house number {number} have for breakfast?"} | more


def test_unread_column_is_reported_once_per_file(tmp_path: Path) -> None:
    for name in ("a.csv", "b.jsonl"):
        rows = [a_pair(i, annotator="x", domain=name, score=None, chosen_model="m") for i in range(5)]
        write(tmp_path / name, [*rows[:3], rows[3] | ({"note": "y"} if name == "b.jsonl" else {}), rows[4]])
    lines = [line for line in validate(item_outcomes(rows_of(tmp_path))).faults if ": unread_column: " in line]
    columns = {"a.csv:2": "annotator", "b.jsonl:1": "annotator", "b.jsonl:4": "note"}
    assert [line.removeprefix(f"{tmp_path}/").partition("; known")[0] for line in lines] == [
        f"{place}: warning: unread_column: not read: {column!r}" for place, column in columns.items()
    ]
    with pytest.warns(DataWarning, match="not read: 'annotator'; known are ") as warned:
        assert len(list(read(rows_of(tmp_path)))) == 10
    assert len(warned) == 3


def test_a_column_that_no_row_has_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [PAIR, PAIR | {"prompt": "And for lunch?", "land": "Chile"}])
    assert [item.culture for item in read(rows_of(path, columns={"culture": "land"}))] == [None, "CL"]
    for columns, message in (
        ({"culture": "nation"}, r"data\.columns\.culture: no row has a column 'nation'"),
        ({"prompt": "question"}, r"rows.jsonl:1: prompt: Field required, in column question"),
    ):
        with pytest.raises(DataError, match=message):
            read(rows_of(path, columns=columns))
    assert recognise(str(path), {"prompt": "question"}) == [
        "data=rows",
        'data.columns={prompt: ["question"], chosen: ["chosen"], rejected: ["rejected"]}',
    ]


def test_data_settings_fill_in_missing_columns(tmp_path: Path) -> None:
    given = {"culture": "MX", "language": "es", "domain": "home"}
    path = write(tmp_path / "rows.jsonl", [a_pair(1), a_pair(2, **given), a_pair(3, subset="street")])
    items = read(rows_of(path, culture="CA-QC", language="French", domain="food"))
    found = [(item.culture, item.language, item.domain) for item in items]
    assert found == [("CA-QC", "fr", "food"), ("MX", "es", "home"), ("CA-QC", "fr", "street")]
    one = {"id": "1", "prompt": "?", "chosen": ["a"], "rejected": ["b", "c"], "subset": "Focus"}
    assert outcome_of(tmp_path, one, "data=rewardbench2", "data.culture=TH").items[0].culture == "TH"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "carb", "culture": "TH"}, r"data\.culture: not used by data=carb; .*: rows, rewardbench2, "),
        ({"source": "culture_cards", "language": "de"}, r"data\.language: not used by data=culture_cards"),
        ({"culture": "Thialand"}, r"data\.culture: got 'Thialand', expected .*; did you mean 'TH' \(Thailand\)\?"),
        ({"language": "Klingonese"}, r"data\.language: got 'Klingonese', expected an English name or a BCP-47 tag"),
        ({"countries": ["TH", "Chile"]}, r"data\.countries: got 'Chile', expected .*; did you mean 'CL'"),
    ],
)
def test_unused_or_misspelt_setting_is_rejected(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    data = rows_of(write(tmp_path / "rows.jsonl", [a_pair(1)])).model_copy(update=changes)
    readers = [read, lambda data: validate(item_outcomes(data))]
    for reader in readers[: 1 if data.source == "culture_cards" else 2]:
        with pytest.raises(DataError, match=message):
            reader(data)


def test_equal_prompts_are_one_question_group_whatever_the_ids(tmp_path: Path) -> None:
    """As in RM-Bench, whose prompts have nine pairs each; a translation under the same id joins its original."""
    rows = [a_pair(i, prompt=f"Question {i // 3}?", id=f"row-{i}") for i in range(9)]
    rows.append(a_pair(9, prompt="Frage 0?", language="de", id="row-0"))
    groups = [item.group for item in read(rows_of(write(tmp_path / "rows.jsonl", rows)))]
    assert [groups.index(group) // 3 for group in groups] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 0]
    given = [a_pair(i, prompt="Why?", group=f"g{i}") for i in range(2)]
    assert len({item.group for item in read(rows_of(write(tmp_path / "given.jsonl", given)))}) == 2


def test_faulty_rows_are_left_out_and_counted_or_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [a_pair(0), a_pair(1, chosen=" "), a_pair(2)])
    config = rows_of(path)
    with pytest.raises(DataError, match=r"rows\.jsonl:2: chosen: must not be blank"):
        read(config)
    with pytest.warns(DataWarning, match=r"left out 1 of 3 .*rows\.jsonl:2: chosen: .*faulty_rows"):
        assert len(read(config.model_copy(update={"faulty_rows": "skip"}), faulty=(faulty := []))) == 2
    assert [line.partition(": ")[0] for line in faulty] == [f"{config.path}:2"]
