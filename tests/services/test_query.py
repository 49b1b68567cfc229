"""Queries of an MLflow store on PostgreSQL fetch what has changed and give what a full read gives, as on sqlite."""

from __future__ import annotations

import pytest

from bayeslaw import store
from tests.bayeslaw.test_cache import DAY, THEN, Study

pytestmark = [pytest.mark.service, pytest.mark.slow]


def test_what_changed_is_fetched_from_postgresql(postgres, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store.connect(postgres.uri, create=True)
    study = Study(postgres.uri, tmp_path)
    runs = [study.add(updated=THEN + day * DAY) for day in range(3)]
    others = [study.add(start=THEN - day * DAY, end=THEN - day * DAY) for day in range(2)]
    newest_first = study.client.search_runs([study.id], order_by=["tags.`bayeslaw.updated` DESC"])
    assert [run.info.run_id for run in newest_first] == [*runs[::-1], *others]  # runs without the tag come last
    assert study.losses() == [3.0] * 5
    study.change(runs[0], 2.5, updated=THEN + 9 * DAY)
    assert study.losses() == [2.5, *[3.0] * 4]
    study.client.delete_run(runs[1])
    assert study.losses() == [2.5, *[3.0] * 3]
    study.client.restore_run(runs[1])
    running = study.add(start=THEN, status="RUNNING", loss=2.0)
    assert study.losses() == [2.5, *[3.0] * 4]
    study.client.set_terminated(running, "FINISHED", THEN)
    assert study.losses() == [2.0, 2.5, *[3.0] * 4]
