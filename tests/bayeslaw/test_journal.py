"""Journals that are read back, and lines that are no records."""

from __future__ import annotations

import json
import os

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
        ({}, "line 3: .*event None, not one of start, metrics, resume, end"),
        ({"event": ["end"]}, "line 3: .*event"),
        ({"event": "end", "time": 0.0, "state": "finished", "row": [1]}, "line 3: .*end without a usable row"),
        ({"event": "metrics", "time": "now"}, "line 3: .*metrics without a usable time, step, values"),
        ({"event": "resume", "time": 0.0, "step": 1.5}, "line 3: .*resume without a usable step, versions, row"),
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


def steps(journal):
    return [(record["step"], record["values"]["train/loss"]) for record in journal.metrics]


def test_a_resumed_run_is_told_by_what_counts(tmp_path):
    writer = JournalWriter(tmp_path)
    writer.start(study="s", config={}, config_hash="h", versions={}, row={"run_id": "a", "device": "x", "seed": 3})
    for step in (10, 20, 30):
        writer.metrics(step, {"train/loss": 1.0})
    writer.end(state="killed", row={"tokens": 30})
    writer.close()
    assert read_journal(tmp_path).row == {"run_id": "a", "device": "x", "seed": 3, "tokens": 30, "state": "killed"}

    writer = JournalWriter(tmp_path)
    writer.resume(step=20, versions={"bayeslaw": "2"}, row={"device": "y", "device_count": 2})
    journal = read_journal(tmp_path)
    assert (journal.end, journal.state) == (None, "running")
    assert journal.row == {"run_id": "a", "device": "y", "device_count": 2, "seed": 3, "state": "running"}
    assert steps(journal) == [(10, 1.0), (20, 1.0)]
    writer.metrics(30, {"train/loss": 2.0})
    writer.metrics(40, {"train/loss": 2.0})
    writer.resume(step=10, versions={}, row={"device": "z"})  # killed outright, and a damaged checkpoint passed over
    writer.metrics(20, {"train/loss": 3.0})
    writer.resume(step=40, versions={}, row={})
    writer.metrics(50, {"train/loss": 4.0})
    writer.end(state="finished", row={"tokens": 50})
    writer.close()
    journal = read_journal(tmp_path)
    assert steps(journal) == [(10, 1.0), (20, 3.0), (50, 4.0)]
    assert journal.end["state"] == "finished"
    assert journal.row == {
        "run_id": "a",
        "device": "z",
        "device_count": 2,
        "seed": 3,
        "tokens": 50,
        "state": "finished",
    }


@pytest.mark.parametrize("tail", ['{"event": "metr', "\0\0\0\0", "{broken}\n"])
def test_what_a_crash_cut_off_is_no_damage_to_what_follows(journal, tail):
    before = read_journal(journal).records
    journal.write_text(journal.read_text() + tail)
    writer = JournalWriter(journal.parent)
    writer.resume(step=1, versions={}, row={})
    writer.close()
    records = read_journal(journal).records
    assert records[:-1] == before
    assert records[-1]["event"] == "resume"
    assert "broken" not in journal.read_text()


def test_a_whole_record_that_lacks_its_line_end_stays(journal):
    """A reader has counted it, so its place must not be taken by another."""
    journal.write_text(journal.read_text().removesuffix("\n"))
    assert len(read_journal(journal).records) == 3
    writer = JournalWriter(journal.parent)
    writer.resume(step=1, versions={}, row={})
    writer.close()
    assert [record["event"] for record in read_journal(journal).records] == ["start", "metrics", "end", "resume"]


def test_a_whole_journal_is_continued_as_it_is(journal):
    before = journal.read_bytes()
    JournalWriter(journal.parent).close()
    assert journal.read_bytes() == before


def test_a_disk_that_fails_to_sync_is_told(journal, monkeypatch):
    def fail(descriptor):
        raise OSError(28, "No space left on device")

    writer = JournalWriter(journal.parent)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(JournalError, match="No space left"):
        writer.sync()
    writer.close()
