"""A study goes to another machine in one archive and gives the same result there; what is no archive is refused."""

from __future__ import annotations

import io
import json
import math
import shutil
import tarfile

import pandas as pd
import pytest

from bayeslaw import packing, store
from bayeslaw.archive import export_study, import_study
from bayeslaw.curves import load_curves
from bayeslaw.datasets import load_dataset
from bayeslaw.errors import BayeslawError, NoRunsError, UsageError
from bayeslaw.journal import JournalWriter, find_journals
from bayeslaw.runs import load_runs
from bayeslaw.schema import COLUMNS
from bayeslaw.sources import MANIFEST

NASTY = "a'; DROP TABLE runs; -- <b>\x1b[31m"


def result(table):
    return table.data_hash, table.excluded.to_dict("records"), table.notes


def journal(folder, index, *, state="finished", **changes):
    row = load_dataset("isodepth").iloc[index].to_dict()
    row = {name: row[name] for name in COLUMNS if name in row and name not in ("source", "state")}
    end = {name: float(row.pop(name)) for name in [*row] if COLUMNS[name].result} | changes
    writer = JournalWriter(folder)
    writer.start(study="s", config={"seed": index}, config_hash=f"{index:016x}", versions={}, row=row | {"seed": index})
    for step in (1, 2, 3):
        writer.metrics(step, {"val/loss": 5.0 / step, "train/loss": math.nan if step == 2 else 6.0})
    if state != "running":
        writer.end(state=state, row=end)
    writer.close()


@pytest.fixture
def study(tmp_path):
    folder = tmp_path / "here" / "study"
    journal(folder / "runs" / "a", 0)
    journal(folder / "runs" / "b", 1)
    journal(folder / "runs" / NASTY.replace("/", "-"), 2)
    journal(folder / "runs" / "d", 3, state="failed")
    journal(folder / "runs" / "e", 4, loss=math.inf)
    journal(folder / "runs" / "f", 5, state="running")
    (folder / "runs" / "g").mkdir()
    (folder / "runs" / "g" / "journal.jsonl").write_text("{}\n")
    (folder / "runs" / "a" / "weights").write_text("large")
    return folder


@pytest.fixture
def mlflow_study(store_uri, tmp_path):
    from mlflow.entities import Metric, Param, RunTag

    client = store.connect(store_uri)
    experiment = client.create_experiment("study", artifact_location=str(tmp_path))
    parent = client.create_run(experiment, tags={"bayeslaw.sweep": "0" * 16}).info.run_id
    for index in range(5):
        row = load_dataset("isodepth").iloc[index].to_dict()
        results = {name: float(row.pop(name)) for name in [*row] if name in COLUMNS and COLUMNS[name].result}
        run = client.create_run(experiment, start_time=1000 + index).info.run_id
        tags = {"bayeslaw.run_id": row["run_id"], "mlflow.parentRunId": parent, "bayeslaw.sweep": "0" * 16}
        tags |= {"bayeslaw.host": NASTY, "bayeslaw.heartbeat": "1000"}
        curve = [Metric("val/loss", 5.0 / step, 1000 * step, step) for step in (1, 2, 3)]
        curve += [Metric("val/loss", 2.0, 9000, 2), Metric("train/loss", math.nan, 1, 1), Metric("up", math.inf, 1, 1)]
        client.log_batch(
            run,
            metrics=[*curve, *(Metric(name, value, 1, 3) for name, value in results.items())],
            params=[
                Param(name, str(row[name])) for name in COLUMNS if name in row and name not in ("run_id", "source")
            ],
            tags=[RunTag(name, text) for name, text in tags.items()],
        )
        client.set_terminated(run, "FINISHED" if index < 3 else "FAILED", 5000 + index)
    return {"source": "mlflow:study", "tracking_uri": store_uri}


def test_a_folder_of_journals(study, tmp_path):
    expected = load_runs(study)
    assert len(expected.excluded) == 4
    assert result(export_study(study, tmp_path / "study.tar.xz")) == result(expected)
    table = import_study(tmp_path / "study.tar.xz", tmp_path / "there" / "deep")
    assert result(table) == result(expected)
    assert result(load_runs(tmp_path / "there" / "deep")) == result(expected)
    for path in find_journals(study):
        assert (tmp_path / "there" / "deep" / path.relative_to(study)).read_bytes() == path.read_bytes()
    assert not list((tmp_path / "there").rglob("weights"))
    curves = load_curves(tmp_path / "there" / "deep", metric="val/loss")
    pd.testing.assert_frame_equal(curves, load_curves(study, metric="val/loss"))
    assert list(curves["value"]) == [5.0, 2.5, 5.0 / 3] * 3


def test_an_experiment_of_mlflow(mlflow_study, tmp_path):
    expected = load_runs(**mlflow_study)
    assert len(expected.runs) == 3
    table = export_study(out=tmp_path / "s.tar.xz", **mlflow_study)
    assert result(table) == result(expected)
    assert result(import_study(tmp_path / "s.tar.xz", tmp_path / "there")) == result(expected)
    for metric in ("val/loss", "train/loss", "up"):
        there = load_curves(tmp_path / "there", metric=metric)
        pd.testing.assert_frame_equal(there, load_curves(metric=metric, **mlflow_study))
    curves = load_curves(tmp_path / "there", metric="val/loss", where="width_scale > 6")
    assert list(curves["value"]) == [5.0, 2.0, 5.0 / 3] * 2
    assert list(curves["time"]) == [1.0, 9.0, 3.0] * 2
    assert (load_curves(tmp_path / "there", metric="up")["value"] == math.inf).all()
    again = export_study(tmp_path / "there", tmp_path / "again.tar.xz")
    assert result(again) == result(expected)
    assert (tmp_path / "again.tar.xz").read_bytes() == (tmp_path / "s.tar.xz").read_bytes()


@pytest.mark.parametrize("kind", ["csv", "parquet", "desk-rates"])
def test_tables(kind, tmp_path):
    source = kind
    if kind != "desk-rates":
        frame = load_dataset("isodepth").assign(state=["failed"] + ["finished"] * 115)
        source = tmp_path / f"t.{kind}"
        frame.to_csv(source, index=False) if kind == "csv" else frame.to_parquet(source, index=False)
    export_study(source, tmp_path / "s.tar.xz")
    assert result(import_study(tmp_path / "s.tar.xz", tmp_path / "there")) == result(load_runs(source))
    for each in (source, tmp_path / "there"):
        with pytest.raises(UsageError, match="holds no curves"):
            load_curves(each, metric="val/loss")


def test_the_same_study_gives_the_same_bytes(study, tmp_path):
    export_study(study, tmp_path / "a.tar.xz")
    shutil.copytree(study, tmp_path / "elsewhere")
    export_study(str(tmp_path / "elsewhere"), tmp_path / "b.tar.xz")
    assert (tmp_path / "a.tar.xz").read_bytes() == (tmp_path / "b.tar.xz").read_bytes()
    assert str(tmp_path).encode() not in manifest_of(tmp_path / "a.tar.xz")


def test_what_cannot_be_exported(tmp_path):
    with pytest.raises(UsageError, match=r"ends in \.tar\.xz"):
        export_study("isodepth", tmp_path / "a.zip")
    with pytest.raises(UsageError, match="unknown source"):
        export_study("isodepthh", tmp_path / "a.tar.xz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoRunsError):
        export_study(tmp_path / "empty", tmp_path / "a.tar.xz")
    journal(tmp_path / "running", 0, state="running")
    with pytest.raises(NoRunsError, match="no finished run"):
        export_study(tmp_path / "running", tmp_path / "a.tar.xz")
    assert not (tmp_path / "a.tar.xz").exists()


def test_what_cannot_be_imported(study, tmp_path):
    export_study(study, tmp_path / "a.tar.xz")
    with pytest.raises(UsageError, match="exists"):
        import_study(tmp_path / "a.tar.xz", study)
    with pytest.raises(UsageError, match="no file"):
        import_study(tmp_path / "none.tar.xz", tmp_path / "there")
    assert len(find_journals(study)) == 7


# Archives that were changed, or made to do harm


def manifest_of(path):
    with tarfile.open(path) as packed:
        return packed.extractfile(MANIFEST).read()


def changed(path, change):
    """The archive with its files changed: a list of (entry, content), the manifest a dict."""
    with tarfile.open(path) as packed:
        files = [(entry, packed.extractfile(entry).read()) for entry in packed]
    about = json.loads(files[0][1])
    files = change(about, files[1:])
    listed = tarfile.TarInfo(MANIFEST)
    with tarfile.open(path, "w:xz") as packed:
        for entry, content in [(listed, json.dumps(about).encode()), *files]:
            if entry.isreg():
                entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))


def entry(name, kind=tarfile.REGTYPE, target=""):
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


def added(name, content=b"{}", listed=True, **options):
    """A change that adds a member, and its name to the list."""

    def change(about, files):
        if listed:
            import hashlib

            digest = hashlib.sha256(content).hexdigest()
            about["members"].append({"name": name, "size": len(content), "sha256": digest})
        return [*files, (entry(name, **options), content)]

    return change


def lied(**fields):
    def change(about, files):
        about["members"][0] |= fields
        return files

    return change


def dropped(about, files):
    return files[1:]


def altered(about, files):
    first, content = files[0]
    return [(first, content[:-2] + b" \n"), *files[1:]]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (added("../out.txt"), "no path below"),
        (added("runs/../../out.txt"), "no path below"),
        (added("/tmp/bayeslaw-out.txt"), "no path below"),
        (added("./out.txt"), "no path below"),
        (added("link", kind=tarfile.SYMTYPE, target="/etc/passwd"), "no plain file"),
        (added("link", kind=tarfile.LNKTYPE, target="study.json"), "no plain file"),
        (added("device", kind=tarfile.CHRTYPE), "no plain file"),
        (added("fifo", kind=tarfile.FIFOTYPE), "no plain file"),
        (added("folder", kind=tarfile.DIRTYPE), "no plain file"),
        (added("more.txt", listed=False), "not in its list"),
        (added("runs/a/journal.jsonl", listed=False), "comes twice"),
        (lied(size=1), "bytes, not 1"),
        (lied(size=10**18), "are free"),
        (lied(size=-1), "without name, size and sha256"),
        (lied(size="1"), "without name, size and sha256"),
        (lied(sha256="0" * 64), "sha256"),
        (dropped, "are missing"),
        (altered, "sha256"),
    ],
)
def test_harmful_and_changed_archives_leave_nothing(study, tmp_path, change, named):
    path = tmp_path / "in" / "a.tar.xz"
    export_study(study, path)
    changed(path, change)
    with pytest.raises(BayeslawError, match="damaged") as error:
        import_study(path, tmp_path / "in" / "there")
    assert named in str(error.value)
    assert [each.name for each in path.parent.iterdir()] == ["a.tar.xz"]
    assert not (tmp_path / "out.txt").exists()


def test_an_archive_that_unpacks_to_more_than_it_says(study, tmp_path, monkeypatch):
    path = tmp_path / "a.tar.xz"
    export_study(study, path)
    monkeypatch.setattr(packing, "_CHUNK", 2**16)

    def bomb(about, files):
        long = entry("x" * 3_000_000)  # a name is a header, which tar reads whole
        return [(long, b""), *files]

    changed(path, bomb)
    assert path.stat().st_size < 100_000
    with pytest.raises(BayeslawError, match="more than it may"):
        import_study(path, tmp_path / "there")
    monkeypatch.setattr(packing, "MOST_LIST_BYTES", 1000)
    export_study(study, path)
    with pytest.raises(BayeslawError, match="more than it may"):
        import_study(path, tmp_path / "there")


@pytest.mark.parametrize("content", [b"", b"no archive", "cut", "first"])
def test_no_archives(study, tmp_path, content):
    path = tmp_path / "a.tar.xz"
    export_study(study, path)
    if content == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif content == "first":
        packing.pack(study, ["runs/a/journal.jsonl"], path)
    else:
        path.write_bytes(content)
    with pytest.raises(BayeslawError, match="no archive of a study, or is damaged"):
        import_study(path, tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"data_hash": "0" * 16}, "data_hash is"),
        ({"excluded": []}, "excluded is"),
        ({"notes": ["other"]}, "notes is"),
        ({"schema_version": 99, "bayeslaw": "9.9.9"}, "schema_version 99"),
    ],
)
def test_another_result_than_where_it_was_exported(study, tmp_path, fields, named):
    path = tmp_path / "a.tar.xz"
    export_study(study, path)

    def change(about, files):
        about |= fields
        return files

    changed(path, change)
    with pytest.raises(BayeslawError) as error:
        import_study(path, tmp_path / "there")
    assert named in str(error.value)
    assert not (tmp_path / "there").exists()


def test_a_study_that_is_damaged_after_its_import(mlflow_study, tmp_path):
    export_study(out=tmp_path / "s.tar.xz", **mlflow_study)
    import_study(tmp_path / "s.tar.xz", tmp_path / "there")
    (tmp_path / "there" / "curves.csv").write_text("mlflow_id,metric,step\n")
    with pytest.raises(BayeslawError, match=r"curves\.csv is damaged"):
        load_curves(tmp_path / "there", metric="val/loss")
    (tmp_path / "there" / "mlflow_runs.jsonl").write_text('["a", 1]\n')
    with pytest.raises(BayeslawError, match=r"mlflow_runs\.jsonl is damaged"):
        load_runs(tmp_path / "there")


def test_a_metric_that_no_run_has(study, mlflow_study, tmp_path):
    export_study(out=tmp_path / "s.tar.xz", **mlflow_study)
    import_study(tmp_path / "s.tar.xz", tmp_path / "there")
    for source in ({"source": study}, mlflow_study, {"source": tmp_path / "there"}):
        with pytest.raises(UsageError, match="no run has the metric 'val/los'") as error:
            load_curves(metric="val/los", **source)
        assert "train/loss" in error.value.allowed
