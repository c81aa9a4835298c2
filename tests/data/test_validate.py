"""`tal data validate` and `tal data build`: every fault is reported, and no data is lost or overwritten."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from conftest import Tal
from data.tables import carb_row, write

from think_as_locals.data.sources import recognise
from think_as_locals.data.validate import suspicions
from think_as_locals.types import DataError, DataWarning, Item

FOREIGN = "ขนมปังกับเนยและแยม พร้อมไข่ต้มยางมะตูม เมื่อครอบครัวมีเวลาในวันอาทิตย์"
PLANTED: dict[int, tuple[dict[str, Any] | str, str]] = {
    3: ({"prompt": ""}, "error: blank"),
    5: ("{cut off", "error: not_json"),
    8: ({"chosen": [FOREIGN]}, "warning: wrong_language"),
    11: ({"chosen": ["Brötchen mit Butter.assistant\n\nUnd was isst man dazu am liebsten?"]}, "warning: run_on_turn"),
    14: ({"num_correct": 2}, "warning: count_mismatch"),
    17: ({"language": "Klingonese"}, "error: unknown_language"),
    20: ({"id": "2"}, "error: repeated_id"),
    23: ({"chosen": ["Nichts."], "rejected": ["Alles.", "Etwas.", "Nichts."]}, "error: invalid_item"),
}


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """30 rows of CARB's schema, eight of them with a fault."""
    lines = []
    for number in range(1, 31):
        fault = PLANTED.get(number, ({}, ""))[0]
        lines.append(fault if isinstance(fault, str) else json.dumps(carb_row(number) | fault, ensure_ascii=False))
    path = tmp_path / "carb.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_validate_reports_every_fault_and_quarantines_bad_rows(planted: Path, tmp_path: Path, tal: Tal) -> None:
    quarantine = tmp_path / "quarantine.jsonl"
    status, output, _ = tal("data", "validate", str(planted), "--quarantine", str(quarantine))
    assert status == 1
    faults = [line for line in output.splitlines() if line.startswith(f"{planted}:")]
    assert len(faults) == len(PLANTED)
    for line, (number, (_, fault)) in zip(faults, PLANTED.items(), strict=True):
        assert line.startswith(f"{planted}:{number}: {fault}: ")
    assert output.splitlines()[-1] == "30 rows = 25 imported (25 items) + 5 in quarantine"
    bad = [json.loads(line) for line in quarantine.read_text(encoding="utf-8").splitlines()]
    lines = planted.read_text(encoding="utf-8").split("\n")
    assert {row["row"]: [fault["name"] for fault in row["faults"]] for row in bad} == {
        number: [fault.partition(": ")[2]] for number, (_, fault) in PLANTED.items() if fault.startswith("error")
    }
    assert all(row["text"] == lines[row["row"] - 1] for row in bad)
    assert {row["file"] for row in bad} == {str(planted)}


def test_validate_json_is_one_document_and_strict_stops_at_the_first_fault(planted: Path, tal: Tal) -> None:
    done = tal("data", "validate", str(planted), "--json")
    found = json.loads(done.out)
    assert (done.status, found["clean"]) == (1, False)
    assert (found["rows"], found["imported"], found["items"]) == (30, 25, 25)
    assert found["named"]["blank"] == {"severity": "error", "rows": 1, "first_in": [f"{planted.name}:3"]}
    assert found["faults"][0].startswith(f"{planted}:3: error: blank: ")
    status, output, _ = tal("data", "validate", str(planted), "--strict")
    assert status == 1
    assert output.startswith(f"read as data=carb\n{planted}:3: error: blank: ")
    assert f"{planted}:5:" not in output


def test_valid_and_skipped_rows_exit_with_status_0(tmp_path: Path, tal: Tal) -> None:
    path, bad = write(tmp_path / "carb.jsonl", [carb_row(number) for number in range(5)]), tmp_path / "bad.jsonl"
    assert tal("data", "validate", str(path), "--strict", "--quarantine", str(bad)).status == 0
    assert sorted(tmp_path.iterdir()) == [path]
    row = {"context": [{"role": "user", "content": "Breakfast?"}], "response1": "Porridge.", "response2": "Toast."}
    known = {"domain": "general", "language": "english", "overall_preference": 0}
    done = tal("data", "validate", str(write(tmp_path / "h.jsonl", [row | known])), "--strict")
    assert done.status == 0
    assert "skipped: tie: " in done.out


@pytest.mark.parametrize(
    ("words", "name", "message"),
    [
        (["--strict"], "items.jsonl", "carb.jsonl:3: error: blank"),
        (["data.countries=[DE,TH]"], "items.jsonl", "data.countries: no items of 'TH'"),
        ([], "carb.jsonl", "/carb.jsonl already exists"),
        *(([], f"a.{kind}", f"/a.{kind}: .*expected a name such as a") for kind in ("json", "jsonl.gz", "parquet")),
        ([], "none/a.jsonl", "/none/a.jsonl: cannot be written"),
        ([], f"{'x' * 300}.jsonl", "x.jsonl: "),
    ],
)
def test_failed_build_writes_nothing(
    planted: Path, tmp_path: Path, tal: Tal, words: list[str], name: str, message: str
) -> None:
    before = planted.read_bytes()
    status, _, error = tal("data", "build", "data=carb", f"data.path={planted}", f"out={tmp_path / name}", *words)
    assert status == 2
    assert re.search(message, error)
    assert list(tmp_path.iterdir()) == [planted]
    assert planted.read_bytes() == before


def test_build_without_any_item_writes_nothing_and_names_the_faults(tmp_path: Path, tal: Tal) -> None:
    path = write(tmp_path / "rows.jsonl", [pair(number, chosen=" ") for number in range(5)])
    done = tal("data", "build", "data=rows", f"data.path={path}", f"out={tmp_path / 'items.jsonl'}")
    faults = [f"{path}:{number}: error: blank: chosen: must not be blank" for number in (1, 2, 3)]
    assert (done.status, done.out) == (2, "")
    assert [line.partition(", got")[0] for line in done.err.splitlines()[1:]] == faults
    assert sorted(tmp_path.iterdir()) == [path]


def test_unread_files_of_a_folder_are_reported_in_one_warning(planted: Path, tal: Tal) -> None:
    (planted.parent / "LICENSE").write_text("MIT")
    with pytest.warns(DataWarning) as warned:
        done = tal("data", "validate", str(planted.parent))
    (warning,) = warned
    line = warnings.formatwarning(warning.message, warning.category, "validate.py", 1)  # as the command has set it
    assert line.startswith(f"tal: warning: {planted.parent}: not read: LICENSE (rows are in .jsonl, ")
    assert (done.out.splitlines()[-1], done.err) == ("30 rows = 25 imported (25 items) + 5 in quarantine", "")


ROWS = {  # columns
    "carb": "id language country subset prompt chosen rejected num_correct num_rejected chosen_model source category",
    "rows": "prompt chosen rejected language subset id",
    "rows of A and B": "prompt response_a response_b winner model_a",
    "m_rewardbench": "id prompt chosen rejected language source category chosen_model rejected_model",
    "include": "question option_a option_b option_c option_d answer language country",
    "crisp_rm": "scenario question norm culture appropriate generic opposite language",
    "rewardbench2": "id subset prompt chosen rejected num_correct num_incorrect total_completions",
    "helpsteer3": "context response1 response2 overall_preference domain",
    "care": "question response human_rating associated_culture",
    "globalopinionqa": "question selections options source",
}


@pytest.mark.parametrize("source", ROWS)
def test_source_is_recognised_by_fields_despite_invalid_rows(tmp_path: Path, source: str) -> None:
    path, row = tmp_path / "rows.jsonl", json.dumps(dict.fromkeys(ROWS[source].split(), "x"))
    path.write_text("\n".join(["{", "[]", "{}", *[row] * 3]))
    assert recognise(str(path)) == [f"data={source.partition(' ')[0]}"]


COLUMNS = "prompt,chosen\n?,!\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.jsonl", COLUMNS, "rows.jsonl:1: expected rows with named columns: not JSON"),
        ("rows", COLUMNS, "rows:1: .*; a file named without .csv"),
        ("rows.csv", "prompt,chosen\n?,Yes, a lot!\n", "rows.csv:2: .* 3 cells in 2 columns: a text holds an"),
        ("pipe", None, "read only once: say data="),
    ],
)
def test_unrecognised_rows_are_rejected_with_a_remedy(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    (tmp_path / name).write_text(content) if content else os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=message):
        recognise(str(tmp_path / name))


def pair(number: int, **changes: Any) -> dict[str, Any]:
    return {"id": number, "prompt": f"Frage {number}?", "chosen": "ja", "rejected": "nein"} | changes


def test_table_shows_exact_file_names(tmp_path: Path, tal: Tal) -> None:
    for name in ("[red]rows.jsonl", "rows:train:.jsonl", f"{'long_' * 20}.jsonl"):
        _, output, _ = tal("data", "validate", str(write(tmp_path / name, [pair(1, prompt="")])))
        table = [line for line in output.splitlines() if line.startswith("│")]
        assert "".join(line.split("│")[4].strip() for line in table) == f"{name}:1"


@pytest.mark.parametrize(("how", "refused"), [("skip", False), ("error", True)])
def test_build_stops_at_an_error_if_faulty_rows_are_to(tmp_path: Path, tal: Tal, how: str, refused: bool) -> None:
    path, out = (write(tmp_path / "carb.jsonl", [carb_row(0), carb_row(1) | {"chosen": [" "]}]), tmp_path / "o.jsonl")
    done = tal("data", "build", "data=carb", f"data.path={path}", f"data.faulty_rows={how}", f"out={out}")
    assert (done.status, out.exists()) == ((2, False) if refused else (0, True)), done.err
    assert ("carb.jsonl:2: error: blank: " in done.err) == refused


# --- suspicious items ---


def faults(item: Item, **changes: object) -> list[tuple[str, str]]:
    found = list(suspicions([dataclasses.replace(item, **changes)]))  # type: ignore[arg-type]
    assert all(fault.severity == "warning" for fault in found)
    return [(fault.name, fault.detail) for fault in found]


RUN_ON = [
    *("ไหว้ครับassistant\n\nยิ้มด้วย", "A wai.\nassistant\n\nAnd a smile.", "assistant\n\nA wai."),
    *("A wai.user\r\n\r\nAnd then?", "A wai.\r\n\r\nHuman: And then?"),
    *("A wai.<|im_end|>", "A<|start_header_id|>assistant<|end_header_id|>", "A.<end_of_turn>", "[/INST] A wai."),
]
NO_TURN = [
    *("I am an AI assistant\n\nHere is what I know.", "# assistant\n\nA heading.", "- user\n\n- guest"),
    *("Ask the shop assistant\n\nor a friend.", "The assistant bows.", "if a <| b |> c then d"),
]
INVISIBLE = ("\u200b", "\ufeff\u202e\u2066", "\x00", "\u3164 \u2800")
VISIBLE = ("⠇⠀⠃", "👩\u200d👩", "می\u200cخواهم", "·")


@pytest.mark.parametrize(
    ("text", "name", "detail"),
    [
        *((text, "run_on_turn", "the best response continues after ") for text in RUN_ON),
        *((text, "invisible_text", f"the best response is {text!r}") for text in INVISIBLE),
        *((text, None, "") for text in (*NO_TURN, *VISIBLE)),
    ],
)
def test_response_with_a_run_on_turn_or_nothing_to_see_is_reported(
    item: Item, text: str, name: str | None, detail: str
) -> None:
    found = dict(faults(item, responses=("With a firm handshake.", text), best=1, origins=()))
    assert found[name].startswith(detail) if name else not found


def test_text_in_another_script_is_reported_once(item: Item) -> None:
    assert faults(item) == []
    found = faults(item, responses=(FOREIGN, *item.responses[1:]))
    assert found == [("wrong_language", "the response 0 is in another script, it counts as 'en'")]
    assert [defect for defect, _ in faults(item, prompt=FOREIGN)] == ["wrong_language"]
    blend = {"prompt": "Wie begrüßt man ältere Menschen?", "language": "de", "source": "blend", "origins": ()}
    english = ("They bow deeply and say a few friendly words to each other.", *item.responses[1:])
    assert faults(item, **blend, responses=english) == []
    found = faults(item, **blend, responses=(FOREIGN, *item.responses[1:]))
    assert found == [("wrong_language", "the response 0 is in another script, it counts as 'en'")]
    items = [dataclasses.replace(item, id=str(i), responses=(str(i), FOREIGN), best=0, origins=()) for i in range(3)]
    assert [fault.name for fault in suspicions(items)] == ["wrong_language"]
