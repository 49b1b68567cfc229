"""Journals that are read back, and lines that are no records."""

from __future__ import annotations

import json

import pytest

from bayeslaw.errors import JournalError
from bayeslaw.journal import JournalWriter, read_journal


@pytest.fixture
def journal(tmp_path):
    """A whole journal of three lines."""
    writer = JournalWriter(tmp_path)
    writer.start(study="s", config={}, config_hash="h", versions={}, row={"run_id": "a"})
    writer.metrics(1, {"train/loss": 5.0})
    writer.end(state="finished", row={"loss": 2.0})
    writer.close()
    return writer.path


def test_a_line_cut_off_by_a_crash_is_left_out(journal):
    journal.write_text(journal.read_text() + '{"event": "end", "ti')
    read = read_journal(journal)
    assert len(read.records) == 3
    assert read.row == {"run_id": "a", "loss": 2.0, "state": "finished"}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ([1, 2], "line 3: damaged journal, no record .a JSON list"),
        (5, "line 3: damaged journal, no record .a JSON int"),
        ({}, "line 3: .*event None, not one of start, metrics, end"),
        ({"event": ["end"]}, "line 3: .*event"),
        ({"event": "end", "time": 0.0, "state": "finished", "row": [1]}, "line 3: .*end without a usable row"),
        ({"event": "metrics", "time": "now"}, "line 3: .*metrics without a usable time, step, values"),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_json_that_is_no_record_is_named_by_its_line(journal, line, named, last):
    first, second, third = journal.read_text().splitlines()
    lines = [first, second, json.dumps(line)] + ([] if last else [third])
    journal.write_text("\n".join(lines) + "\n")
    with pytest.raises(JournalError, match=named) as error:
        read_journal(journal)
    assert str(journal) in error.value.what
    assert "train the run again" in error.value.do


def test_a_start_without_its_fields_is_no_start(journal):
    journal.write_text(json.dumps({"event": "start", "time": 0.0}) + "\n")
    with pytest.raises(JournalError, match=r"line 1: .*start without a usable study, config"):
        read_journal(journal)
