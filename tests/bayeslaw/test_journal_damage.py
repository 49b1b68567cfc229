"""Journals under damage: checksums, clocks that jump, disks that fill up, readers that come too early."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import time

import pytest

from bayeslaw import journal as journals
from bayeslaw.errors import JournalError
from bayeslaw.journal import JournalTail, JournalWriter, read_journal, read_start


def begun(run_dir):
    writer = JournalWriter(run_dir)
    writer.start(study="s", config={}, config_hash="h", versions={}, row={"run_id": "a"})
    return writer


@pytest.fixture
def whole(tmp_path):
    writer = begun(tmp_path)
    for step in range(1, 6):
        writer.metrics(step, {"train/loss": 1.0 / step, "x": float("nan")})
    writer.end(state="finished", row={"loss": 2.0})
    writer.close()
    return writer.path


def test_any_changed_lost_or_moved_line_is_noticed(whole):
    lines = whole.read_bytes().splitlines(keepends=True)
    dice = random.Random(1)
    for _ in range(300):
        changed = list(lines)
        match dice.randrange(3):
            case 0:  # one bit of a line before the last, its end excepted
                place = dice.randrange(len(lines) - 1)
                line = bytearray(lines[place])
                line[dice.randrange(len(line) - 1)] ^= 1 << dice.randrange(8)
                changed[place] = bytes(line)
            case 1:
                del changed[dice.randrange(len(lines) - 1)]
            case 2:
                first, second = dice.sample(range(len(lines)), 2)
                changed[first], changed[second] = changed[second], changed[first]
        whole.write_bytes(b"".join(changed))
        with pytest.raises(JournalError):
            read_journal(whole)


@pytest.mark.parametrize("cut", range(1, 200, 7))
def test_a_line_cut_anywhere_is_taken_off_and_the_chain_goes_on(whole, cut):
    lines = whole.read_bytes().splitlines(keepends=True)
    kept = len(lines) - (cut < len(lines[-1]) - 1)  # without its newline alone it is whole
    whole.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])
    assert len(read_journal(whole).records) == kept
    writer = JournalWriter(whole.parent)
    writer.resume(step=5, versions={}, row={})
    writer.end(state="finished", row={})
    writer.close()
    assert [record["event"] for record in read_journal(whole).records[kept:]] == ["resume", "end"]


def test_a_last_line_without_its_newline_is_whole(whole):
    whole.write_bytes(whole.read_bytes().rstrip())
    assert read_journal(whole).state == "finished"
    tail = JournalTail(whole)
    assert len(tail.read()) == 7
    writer = JournalWriter(whole.parent)
    writer.resume(step=5, versions={}, row={})
    assert [record["event"] for record, _ in tail.read()] == ["resume"]
    writer.close()


def test_a_journal_without_checksums_gets_none(whole):
    """Those of earlier versions, some of which ship with the package."""
    records = [json.loads(line) for line in whole.read_text().splitlines()]
    for record in records:
        del record["crc"]
    whole.write_text("".join(json.dumps(record) + "\n" for record in records))
    writer = JournalWriter(whole.parent)
    writer.resume(step=5, versions={}, row={})
    writer.close()
    assert len(read_journal(whole).records) == 8
    assert "crc" not in whole.read_text()


@pytest.mark.parametrize("stripped", [2, 6])
def test_a_checksum_taken_off_is_noticed(whole, stripped):
    lines = whole.read_text().splitlines()
    record = json.loads(lines[stripped])
    del record["crc"]
    lines[stripped] = json.dumps(record)
    whole.write_text("\n".join(lines) + "\n")
    with pytest.raises(JournalError, match=rf"line {stripped + 1}: .*without a checksum"):
        read_journal(whole)


def test_times_go_up_whatever_the_clock_does(tmp_path, monkeypatch):
    hours = iter([1000.0, 5000.0, 5000.0, 10.0, 10.0, 5000.0, 9000.0])
    monkeypatch.setattr(time, "time", lambda: next(hours))
    writer = begun(tmp_path)
    for step in range(1, 4):
        writer.metrics(step, {"x": 1.0})
    writer.close()
    writer = JournalWriter(tmp_path)
    for step in range(4, 7):
        writer.metrics(step, {"x": 1.0})
    writer.close()
    times = [record["time"] for record in read_journal(tmp_path).records]
    counted = [int(1000 * moment) for moment in times]
    assert all(later > earlier for earlier, later in itertools.pairwise(counted))
    assert (times[0], times[1], times[-1]) == (1000.0, 5000.0, 9000.0)


def test_a_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
    writer = begun(tmp_path)
    write = os.write

    def full(file, content):
        if len(content) > 20:
            return write(file, content[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(journals.os, "write", full)
    with pytest.raises(JournalError, match="No space left") as error:
        writer.metrics(1, {"x": 1.0})
    assert "the same command again" in error.value.do
    monkeypatch.undo()
    writer.metrics(1, {"x": 2.0})
    writer.close()
    assert [record["values"] for record in read_journal(tmp_path).metrics] == [{"x": 2.0}]


def test_a_tail_reads_each_record_once_however_it_comes(whole, tmp_path):
    content = whole.read_bytes()
    copy = tmp_path / "copy" / "journal.jsonl"
    copy.parent.mkdir()
    dice = random.Random(3)
    tail, read, place = JournalTail(copy), [], 0
    copy.touch()
    while place < len(content):
        more = dice.randrange(1, 90)
        with open(copy, "ab") as file:
            file.write(content[place : place + more])
        place += more
        read += tail.read()
    assert [record for record, _ in read] == list(read_journal(whole).records)
    assert tail.read() == []


def test_the_start_is_read_whatever_became_of_the_rest(whole):
    start = read_journal(whole).start
    lines = whole.read_bytes().splitlines(keepends=True)
    whole.write_bytes(lines[0] + b"rubbish\n" + lines[2])
    assert read_start(whole) == start
    whole.write_bytes(lines[1])
    with pytest.raises(JournalError, match="no start record"):
        read_start(whole)
