"""Rows in the formats of the public data sets, made here, and what the definitions make of the first of them."""

from __future__ import annotations

import json
from pathlib import Path

ROWS = 12


def trivia(i: int) -> dict:
    return {"question": f"Which town is number {i}?", "answer": {"value": f"Town {i}", "aliases": [f"T{i}", "é"]}}


def span(context: str, i: int) -> dict:
    return {
        "id": f"english-{i}",
        "context": f"Town {i} lies by river {i}.",
        "question": f"What lies by river {i}?",
        "answers": {"text": [f"Town {i}"], "answer_start": [0]},
    }


def _bigbench(i: int) -> dict:
    return {"idx": i, "inputs": f"Close ( [ {'( ' * i}\nOutput: ", "targets": [f"{') ' * i}] )"]}


def arc(i: int) -> dict:
    texts = [f"rock {i}", "plant", "river", "cloud"]
    return {
        "id": f"Q{i}",
        "question": f"What of these is alive ({i})?",
        "choices": {"text": texts, "label": list("ABCD")},
        "answerKey": "B",
    }


def _coqa(i: int) -> dict:
    return {
        "source": "own",
        "story": f"Ann has {i} cats.",
        "questions": {"input_text": ["Who?", "How many?"], "turn_id": [1, 2]},
        "answers": {"input_text": ["Ann", str(i)], "turn_id": [1, 2]},
    }


ROW = {
    "arc_easy": arc,
    "asdiv": lambda i: {"body": f"A has {i} eggs.", "question": "How many?", "answer": f"{i} (eggs)", "formula": ""},
    "coqa": _coqa,
    "cs_algorithms": _bigbench,
    "drop": lambda i: {
        "passage": f"They won by {i}.",
        "question": f"By how much ({i})?",
        "answers_spans": {"spans": [str(i), "x"], "types": ["number", "span"]},
    },
    "dyck_bigbench": _bigbench,
    "lambada": lambda i: {"text": f"the end of tale {i} is a happy end"},
    "mawps": lambda i: {"Question": "N_00 and N_01 eggs ?", "Numbers": f"{i}.0 2.5", "Answer": i + 2.5},
    "naturalqs": lambda i: {"question": f"which town is {i}", "answer": [f"Town {i}", "x"]},
    "qa_wikidata": _bigbench,
    "squadv2": lambda i: span("", i) | {"title": "Towns"},
    "svamp": lambda i: {"Body": f"A has {i} eggs.", "Question": "How many?", "Answer": f"{i}.0"},
    "triviaqa": trivia,
    "tydiqa": lambda i: span("", i),
    "webqs": lambda i: {"question": f"which town is {i}?", "answers": [f"Town {i}", "x"], "url": "u"},
}
"""Rows in the format of each data set, made here."""

LAST = {
    "arc_easy": ("Question: What of these is alive (0)?\nAnswer:", " plant"),
    "asdiv": ("Question: A has 0 eggs. How many?\nAnswer:", " 0"),
    "coqa": ("Passage: Ann has 0 cats.\nQuestion: Who?\nAnswer:", " Ann"),
    "cs_algorithms": ("Close ( [ \nOutput:", " ] )"),
    "drop": ("Passage: They won by 0.\nQuestion: By how much (0)?\nAnswer:", " 0"),
    "dyck_bigbench": ("Close ( [ \nOutput:", " ] )"),
    "lambada": ("the end of tale 0 is a happy", " end"),
    "mawps": ("Question: 0 and 2.5 eggs ?\nAnswer:", " 2.5"),
    "naturalqs": ("Question: which town is 0\nAnswer:", " Town 0"),
    "qa_wikidata": ("Close ( [ \nOutput:", " ] )"),
    "squadv2": ("Passage: Town 0 lies by river 0.\nQuestion: What lies by river 0?\nAnswer:", " Town 0"),
    "svamp": ("Question: A has 0 eggs. How many?\nAnswer:", " 0"),
    "triviaqa": ("Question: Which town is number 0?\nAnswer:", " Town 0"),
    "tydiqa": ("Passage: Town 0 lies by river 0.\nQuestion: What lies by river 0?\nAnswer:", " Town 0"),
    "webqs": ("Question: which town is 0?\nAnswer:", " Town 0"),
}
"""Question and answer of the first row."""


def write_rows(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_public(folder: Path) -> Path:
    """A folder with a few rows for each public task."""
    for name, row in ROW.items():
        for split in ("train", "validation", "test", "default"):
            write_rows(folder / name / f"{split}.jsonl", [row(i) for i in range(ROWS)])
    return folder


def on_hub(folder: Path, name: str) -> str:
    """What a definition says of a data set that lies in files: as if it were on the hub."""
    files = {path.stem: str(path) for path in (folder / name).glob("*.jsonl")}
    return f"dataset_path: json\ndataset_name: null\ndataset_kwargs: {json.dumps({'data_files': files})}\n"
