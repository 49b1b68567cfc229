"""The verbs of the posterior: what they print, in both forms, and how soon they help."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bayeslaw.cli import VERBS, run


def test_fit_json(capsys, tmp_path):
    settings = ["--law", "additive", "--outliers", "student"]
    code = run(["fit", "isodepth-recipes", *settings, "--json", "--out", str(tmp_path / "fit.nc")])
    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    assert set(answer) >= {
        "schema_version", "source", "n_runs", "law", "injection_in", "parameters", "diagnostics", "data_hash",
        "versions", "seconds", "phi_difference",
    }  # fmt: skip
    assert answer["n_runs"] == 240
    keys = {"mean", "sd", "q05", "q50", "q95", "ess_bulk", "ess_tail", "r_hat"}
    assert set(answer["parameters"]["phi"]) == {"baseline", "truncated_bptt", "hyperconnections"}
    assert set(answer["parameters"]["phi"]["baseline"]) == keys
    assert all(set(answer["parameters"][name]) == keys for name in ("alpha", "beta", "E", "A", "B"))
    assert set(answer["diagnostics"]) >= {"divergences", "max_r_hat", "min_ess_bulk", "passed", "not_identified"}
    assert set(answer["seconds"]) == {"import", "compile", "sample", "predictive", "total"}
    assert answer["seconds"]["total"] >= answer["seconds"]["sample"] > 0
    assert set(answer["parameters"]["phi_spread"]) == keys
    assert set(answer["worth"]["baseline"]) == {"2", "4", "8"}
    assert set(answer["worth"]["baseline"]["4"]) == {"mean", "q05", "q50", "q95"}
    assert answer["phi_difference"]["truncated_bptt"]["p_gt_0"] < 0.05
    assert answer["phi_difference"]["hyperconnections"]["p_gt_0"] > 0.95
    code = run(["allocate", str(tmp_path / "fit.nc"), "--flops", "4.64e18", "--recipe", "truncated_bptt", "--json"])
    truncated = json.loads(capsys.readouterr().out)
    assert code == 0
    code = run(["allocate", str(tmp_path / "fit.nc"), "--flops", "4.64e18", "--json"])
    assert set(json.loads(capsys.readouterr().out)["recipes"]) == set(answer["parameters"]["phi"])
    code = run(["allocate", str(tmp_path / "fit.nc"), "--flops", "4.64e18", "--recipe", "baseline", "--json"])
    plain = json.loads(capsys.readouterr().out)
    tokens = [answer["recurrences"]["4"]["optimum"] for answer in (truncated, plain)]
    assert tokens[0]["loss"]["mean"] != tokens[1]["loss"]["mean"]
    assert truncated["recipe"] == "truncated_bptt"


def test_fit_table(capsys, isodepth_fit):
    from bayeslaw.cli.answers import show
    from bayeslaw.diagnostics import check

    show(isodepth_fit, check(isodepth_fit))
    printed = capsys.readouterr().out
    assert "phi[baseline]" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_failed_diagnostics_exit_3(monkeypatch, capsys, isodepth_fit):
    """A fit whose chains disagree is shown, and the exit code says not to rely on it."""
    import xarray as xr

    import bayeslaw.fit
    from bayeslaw.posterior import Fit

    apart = isodepth_fit.posterior["phi"] + xr.DataArray([0.0, 0.1, 0.2, 0.3], dims="chain")
    tree = isodepth_fit.data.copy()
    tree["posterior"] = xr.DataTree(isodepth_fit.posterior.assign(phi=apart))
    broken = Fit(data=tree, runs=isodepth_fit.runs, spec=isodepth_fit.spec)
    monkeypatch.setattr(bayeslaw.fit, "fit", lambda *args, **settings: broken)
    assert run(["fit", "isodepth", "--json"]) == 3
    caught = capsys.readouterr()
    diagnostics = json.loads(caught.out)["diagnostics"]
    assert diagnostics["passed"] is False
    assert diagnostics["max_r_hat"] > 1.01
    assert "R-hat" in caught.err


def test_allocate_prints_a_sentence(capsys, isodepth_file):
    assert run(["allocate", str(isodepth_file), "--flops", "1e19", "--recurrences", "1,4"]) == 0
    assert "train r = 1" in capsys.readouterr().out
    assert run(["allocate", str(isodepth_file), "--flops", "1e19", "--recurrences", "1;4"]) == 2
    assert "--recurrences '1;4'\n  allowed: whole numbers, as 1,2,4 or 1 2 4" in capsys.readouterr().err


def test_predict_json(capsys, isodepth_file):
    command = ["predict", str(isodepth_file), "--width-scale", "34", "--recurrences", "4", "--tokens", "47e9", "--json"]
    assert run(command) == 0
    (made,) = json.loads(capsys.readouterr().out)["predictions"]
    assert set(made) >= {"recurrences", "width_scale", "tokens", "loss", "loss_mean"}
    assert made["loss"]["q05"] < made["loss_mean"]["q05"]
    assert made["loss_mean"]["mean"] == pytest.approx(2.162, abs=0.02), "the published law's own forecast"


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_imports_nothing_heavy(verb):
    """Help comes without any of the slow imports."""
    script = (
        "import sys\nfrom bayeslaw.cli import run\n"
        f"code = run({[verb, '--help'] if verb else ['--help']!r})\n"
        "heavy = {'pymc', 'arviz', 'arviz_stats', 'mlflow', 'torch', 'pandas', 'xarray', 'scipy', 'numpy', 'plotly'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().splitlines()[-1] == "[]"
    assert "Usage: bayeslaw" in done.stdout
