"""Turn the folder of a finished sweep into a shipped study: its table and the archive of its journals.

`python scripts/ship_study.py STUDY FOLDER` writes both to bayeslaw/datasets/, rows sorted by design.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from bayeslaw import datasets
from bayeslaw.datasets.journals import archive_name, pack
from bayeslaw.files import written_whole
from bayeslaw.journal import find_journals, read_journal
from bayeslaw.runs import load_runs
from bayeslaw.schema import BASELINE
from trainer.presets import DESK_RATE

HERE = Path(datasets.__file__).parent


def table_of(study: str, folder: Path) -> pd.DataFrame:
    """The finished runs; without what every loaded table says again, and with the rates' factor where it differs."""
    table = load_runs(folder)
    runs = table.runs.drop(columns=["source", "state"])
    for row in table.excluded.to_dict("records"):
        print(f"left out: {row['run_id']}: {row['reason']}")
    if study == "desk-rates":
        journals = map(read_journal, find_journals(folder))
        factor = {each.run_id: each.start["config"]["optimizer"]["matrix_rate"] / DESK_RATE for each in journals}
        runs["rate_factor"] = runs["run_id"].map(factor)
    keys = ["rate_factor"] * (study == "desk-rates") + ["recipe", "recurrences", "budget", "d_model", "seed"]
    order = runs.assign(recipe=runs["recipe"].where(runs["recipe"] != BASELINE, ""))
    return runs.loc[order.sort_values(keys).index]


def main() -> None:
    """Read the command line and write the two files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=tuple(datasets.STUDIES))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    runs = table_of(given.study, given.folder)
    with written_whole(HERE / datasets.STUDIES[given.study]) as partial:
        runs.to_csv(partial, index=False)
    archive = HERE / archive_name(given.study)
    count = pack(given.folder, archive)
    print(f"{given.study}: {len(runs)} runs, {count} journals, {archive.stat().st_size:,} bytes packed")


if __name__ == "__main__":
    main()
