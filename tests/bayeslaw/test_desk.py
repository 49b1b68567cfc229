"""The shipped study: its table, its journals, and the figures made from both."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import tarfile
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from bayeslaw import datasets
from bayeslaw.cli import build_app, run
from bayeslaw.datasets.journals import archive_name, extract, pack, unpack_journals
from bayeslaw.errors import BayeslawError, NoRunsError, UsageError
from bayeslaw.evaluations import EVALUATION_COLUMNS
from bayeslaw.inputs import inputs_of
from bayeslaw.journal import find_journals, read_journal
from bayeslaw.runs import load_runs
from bayeslaw.schema import COLUMNS

COUNTS = {"desk": 132, "desk-rates": 42}
DESIGN = ["recipe", "recurrences", "d_model", "budget", "seed"]
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "desk.json"
PAGE = (ROOT / "docs" / "desk.md").read_text()


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("journals")
    for name in COUNTS:
        unpack_journals(name, folder / name)
    return {name: folder / name for name in COUNTS}


@pytest.mark.parametrize("name", COUNTS)
def test_the_tables_need_no_repair(name):
    table = load_runs(name)
    assert len(table.runs) == COUNTS[name]
    assert table.excluded.empty
    assert set(table.runs) - set(COLUMNS) == ({"rate_factor"} if name == "desk-rates" else set())
    assert "loss_se" not in table.runs
    assert set(table.runs["source"]) == {name}
    assert (abs(table.runs["flops"] / table.runs["budget"] - 1) < 0.01).all()


def test_the_grid_is_that_of_the_preset():
    from trainer.presets import PRESETS

    for name in COUNTS:
        runs = load_runs(name).runs
        wanted = sorted(tuple({"seed": 0, **cell}[key] for key in DESIGN) for cell in PRESETS[name].cells)
        assert sorted(runs[DESIGN].itertuples(index=False, name=None)) == wanted


def test_the_plain_model_serves_all_recipes_and_seeds_are_replicates():
    table = load_runs("desk")
    inputs = inputs_of(table.runs, injection_in="once")
    assert inputs.recipes == ("baseline", "hyperconnections", "truncated_bptt")
    assert set(table.runs["recipe"][table.runs["recurrences"] == 1]) == {"baseline"}
    assert len(load_runs("desk", recipe="hyperconnections").runs) == 32 + 4 + 16 + 4
    assert inputs.cell is not None
    assert len(inputs.cell.levels) == 4 * 7
    sizes = np.bincount(inputs.run.index)
    assert sorted(sizes) == [1] * 102 + [3] * 10
    assert any("10 designs were trained more than once (30 runs, replicates)" in note for note in table.notes)


def test_the_rates_are_selected_by_their_factor():
    table = load_runs("desk-rates", where="rate_factor == 2 and recurrences == 4")
    assert len(table.runs) == 3 * 3
    own = load_runs("desk", where="d_model == 32 and budget == 8e11 and recurrences == 4")
    assert sorted(map(tuple, table.runs[DESIGN].to_numpy())) == sorted(map(tuple, own.runs[DESIGN].to_numpy()))


@pytest.mark.parametrize("name", COUNTS)
def test_the_journals_are_the_table(unpacked, name):
    journals = [read_journal(path) for path in find_journals(unpacked[name])]
    assert len(journals) == COUNTS[name]
    assert {each.state for each in journals} == {"finished"}
    assert {each.start["study"] for each in journals} == {name}
    assert min(len(list(each.metrics)) for each in journals) > 5
    shipped = datasets.load_dataset(name).set_index("run_id")
    read = load_runs(unpacked[name]).runs.set_index("run_id").loc[shipped.index]
    for column in shipped:
        if column not in ("source", "rate_factor"):
            assert (read[column] == shipped[column]).all(), column
    rates = {each.run_id: each.start["config"]["optimizer"]["matrix_rate"] for each in journals}
    own = 0.032
    factor = shipped["rate_factor"] if name == "desk-rates" else 1
    assert np.allclose(shipped.index.map(rates), own * factor)


def test_the_journals_say_nothing_of_where_they_were_written(unpacked):
    for name in COUNTS:
        for path in find_journals(unpacked[name]):
            text = path.read_text()
            assert "/tmp" not in text
            assert "/home" not in text


def test_journals_come_into_mlflow_once(unpacked, tmp_path, store_uri):
    from trainer.tracking import sync

    for path in find_journals(unpacked["desk"])[:60:20]:
        shutil.copytree(path.parent, tmp_path / "few" / path.parent.name)
    first, second = (sync(tmp_path / "few", tracking_uri=store_uri) for _ in range(2))
    assert [result.error for result in (*first, *second)] == [None] * 6
    assert all(result.delivered == result.records for result in first)
    assert [result.delivered for result in second] == [0, 0, 0]
    table = load_runs("mlflow:desk", tracking_uri=store_uri)
    shipped = load_runs("desk").runs.set_index("run_id").loc[table.runs["run_id"]]
    assert len(table.runs) == 3
    assert (table.runs["loss"].to_numpy() == shipped["loss"].to_numpy()).all()


def test_unpack_says_what_it_did_and_keeps_what_is_there(tmp_path, capsys):
    out = tmp_path / "new" / "desk"
    assert run(["runs", "unpack", "desk-rates", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["journals"] == 42
    assert [path.name for path in out.parent.iterdir()] == ["desk"]
    before = find_journals(out)[0].stat().st_mtime_ns
    assert run(["runs", "unpack", "desk-rates", "--out", str(out)]) == 2
    assert "does not exist yet" in capsys.readouterr().err
    assert find_journals(out)[0].stat().st_mtime_ns == before
    assert run(["runs", "unpack", "isodepth", "--out", str(tmp_path / "x")]) == 2
    assert "allowed: desk, desk-rates" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def packed(*entries: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz") as archive:
        for entry, content in entries:
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    stream.seek(0)
    return stream


def link(name: str, target: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry


@pytest.mark.parametrize(
    "archive",
    [
        lambda: packed((tarfile.TarInfo("../escaped/journal.jsonl"), b"{}")),
        lambda: packed((tarfile.TarInfo("/tmp/journal.jsonl"), b"{}")),
        lambda: packed((link("runs", "/tmp"), b"")),
        lambda: io.BytesIO(b"no archive"),
        lambda: io.BytesIO((resources.files(datasets) / archive_name("desk")).read_bytes()[:-3000]),
    ],
    ids=["out of the folder", "absolute", "a link", "no archive", "cut off"],
)
def test_a_bad_archive_leaves_nothing(tmp_path, archive):
    with pytest.raises(BayeslawError, match="damaged"):
        extract(archive(), tmp_path / "in" / "out")
    assert [path for path in tmp_path.rglob("*") if path.name != "in"] == []


def test_packing_is_the_inverse_and_repeats_itself(unpacked, tmp_path):
    few = tmp_path / "few" / "runs"
    for path in find_journals(unpacked["desk-rates"])[:3]:
        shutil.copytree(path.parent, few / path.parent.name)
    (few / path.parent.name / "checkpoints").mkdir()
    assert pack(few.parent, tmp_path / "a.tar.xz") == 3
    pack(few.parent, tmp_path / "b.tar.xz")
    assert (tmp_path / "a.tar.xz").read_bytes() == (tmp_path / "b.tar.xz").read_bytes()
    with (tmp_path / "a.tar.xz").open("rb") as archive:
        assert extract(archive, tmp_path / "again") == 3
    for path in find_journals(few):
        assert (tmp_path / "again" / path.relative_to(few.parent)).read_bytes() == path.read_bytes()
    with pytest.raises(NoRunsError):
        pack(tmp_path / "nothing", tmp_path / "c.tar.xz")
    with pytest.raises(UsageError, match="exists"):
        unpack_journals("desk", tmp_path / "few")


def test_the_figures_are_of_the_shipped_runs():
    of = json.loads(RESULTS.read_text())["data"]
    assert of == {name: {"runs": COUNTS[name], "data_hash": load_runs(name).data_hash} for name in COUNTS}


def test_the_page_tells_the_figures():
    default = json.loads(RESULTS.read_text())["structures"]["default"]
    for recipe, phi in default["phi"].items():
        told = [phi, *(default["worth"][recipe][r] for r in ("2", "4"))]
        cells = [f"{each['mean']:.2f} [{each['q05']:.2f}, {each['q95']:.2f}]" for each in told]
        row = f"| {recipe} | {' | '.join(cells)} |"
        assert re.sub(r"(?<!\d)0\.", ".", row) in PAGE


def test_the_commands_of_the_page_can_be_meant():
    commands = re.findall(r"^    bayeslaw (.*)$", PAGE, re.MULTILINE)
    assert len(commands) > 10
    for command in commands:
        build_app().parse_args(shlex.split(command), exit_on_error=False, print_error=False)


@pytest.mark.slow
def test_the_posterior_is_that_of_the_figures():
    from bayeslaw.fit import fit

    told = json.loads(RESULTS.read_text())["structures"]["default"]["phi"]
    posterior = fit("desk", drift=False)
    for recipe, value in told.items():
        draws = posterior.draws(recipe, names=["phi"])["phi"]
        assert abs(draws.mean() - value["mean"]) < 0.2 * draws.std()


def test_the_scores_that_ship_are_of_the_probes_as_they_are_made_now():
    from trainer.evaluation.probes import PROBES, probe
    from trainer.presets import preset

    table = datasets.load_evaluation_set("desk-downstream")
    assert set(table) - set(EVALUATION_COLUMNS) == set()
    runs = table.drop_duplicates("run_id")
    planned = [
        (cell["recurrences"], cell["d_model"], cell["budget"], cell["seed"]) for cell in preset("desk-probes").cells
    ]
    assert sorted(zip(runs["recurrences"], runs["d_model"], runs["budget"], runs["seed"], strict=True)) == sorted(
        planned
    )
    for task, rows in table.groupby("task"):
        (digest,) = rows["data_digest"].unique()
        if task != "held_out":
            assert digest == probe(task).digest
            assert (rows["axis"] == PROBES[task].axis).all()
            assert (rows["examples"] == 1000).all()
    own = table[table["test_recurrences"] == table["recurrences"]]
    assert (own.groupby("run_id")["task"].nunique() == len(PROBES) + 1).all()
    held_out = own[own["task"] == "held_out"]
    assert np.allclose(held_out["task_loss"], held_out["loss"], rtol=1e-9)
