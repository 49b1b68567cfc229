"""A training node may have neither pymc nor mlflow."""

from __future__ import annotations

import json
import subprocess
import sys

from trainer.tracking import sync

CODE = """
import json, sys
absent = ("pymc", "pytensor", "arviz", "mlflow", "pandas", "xarray", "scipy", "nutpie")
sys.modules.update(dict.fromkeys(absent))
from pathlib import Path
from trainer.config import TrainConfig
from trainer.loop import train
from trainer.sweep import run_plan
from trainer.tracking import Tracking
arguments = json.loads(sys.argv[1])
tracking = Tracking(arguments["uri"])
result = train(TrainConfig.of(**arguments["fields"]), Path(arguments["out"]), study="bare", tracking=tracking)
print(json.dumps({"loss": result.row["loss"], "loaded": [name for name in absent if sys.modules[name]]}))
"""


def test_train_bare_and_deliver_from_elsewhere(fields, tmp_path, store_uri):
    absent = tmp_path / "absent.db"
    arguments = json.dumps({"fields": fields, "out": str(tmp_path / "out"), "uri": f"sqlite:///{absent}"})
    done = subprocess.run([sys.executable, "-c", CODE, arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["loaded"] == []
    assert "mlflow is not installed here" in done.stderr
    assert not absent.exists()
    (result,) = sync(tmp_path / "out", tracking_uri=store_uri)
    assert result.state == "finished"
    assert result.delivered == result.records
