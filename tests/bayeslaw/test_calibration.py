"""Calibration: what uniform and biased ranks are told to be, simulations that go on where they were, and coverage."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bayeslaw import load_runs, sampling
from bayeslaw.calibration import trials
from bayeslaw.calibration.coverage import LEVELS, RANKED, Uniform, cumulative, judged, place
from bayeslaw.calibration.simulations import SIMULATIONS, simulations_of
from bayeslaw.calibration.trials import SAMPLER, Calibration, summed
from bayeslaw.errors import FitError, UsageError
from bayeslaw.family import ISODEPTH
from bayeslaw.predict import law_loss
from bayeslaw.sizes import along, sizes_of
from bayeslaw.spec import Spec


def conjugate(count, *, narrow=1.0, shift=0.0, seed=0):
    """Ranks and positions of a normal mean under its exact posterior, or under one that is too narrow or off."""
    rng = np.random.default_rng(seed)
    placed = []
    for _ in range(count):
        truth = rng.normal()
        middle = (truth + rng.normal()) / 2
        draws = middle + shift + narrow * np.sqrt(0.5) * rng.standard_normal(400)
        placed.append(place(draws, truth, rng))
    return zip(*placed, strict=True)


def test_an_exact_posterior_passes():
    found = judged("mean", *conjugate(1000))
    assert found.passed
    assert found.faults == ()
    assert [part.share for part in found.coverage] == pytest.approx(LEVELS, abs=0.05)
    for part, (low, high) in zip(found.coverage, ((0.45, 0.55), (0.76, 0.84), (0.87, 0.93)), strict=True):
        assert part.low == pytest.approx(low, abs=0.005)
        assert part.high == pytest.approx(high, abs=0.005)


@pytest.mark.parametrize(
    ("wrong", "faults"),
    [
        ({"narrow": 0.8}, {"50 %", "80 %", "90 %", "ranks"}),
        ({"narrow": 1.25}, {"50 %", "80 %", "90 %", "ranks"}),
        ({"shift": 0.2}, {"ranks"}),
    ],
)
def test_a_wrong_posterior_does_not(wrong, faults):
    assert set(judged("mean", *conjugate(1000, **wrong)).faults) >= faults


def test_ties_are_broken_at_random():
    rng = np.random.default_rng(1)
    ranks, positions = zip(*(place(np.full(150, 3.0), 3.0, rng) for _ in range(1000)), strict=True)
    assert judged("edge", ranks, positions).passed
    assert {0, RANKED} <= set(ranks)


@pytest.mark.parametrize("count", [20, 300])
def test_uniform_ranks_leave_the_envelope_as_seldom_as_it_says(count):
    rng = np.random.default_rng(2)
    uniform = Uniform.of(count)
    sets = rng.integers(RANKED + 1, size=(1500, count))
    p = np.array([uniform.p(ranks) for ranks in sets])
    assert 0.03 < (p < 0.05).mean() < 0.07
    low, high = uniform.envelope(0.95)
    inside = np.array([((low <= (share := cumulative(ranks))) & (share <= high)).all() for ranks in sets])
    assert 0.93 < inside.mean() < 0.97
    assert (inside == (p > 0.05)).mean() > 0.99


def test_a_missing_simulation_counts_against_the_verdict_both_ways():
    ranks, positions = (list(values) for values in conjugate(1000))
    assert judged("mean", ranks, positions, failed=2).passed
    spoilt = judged("mean", ranks, positions, failed=100)
    assert not spoilt.passed
    part = spoilt.coverage[0]
    assert part.least == pytest.approx(part.share * 1000 / 1100)
    assert part.most == pytest.approx((part.share * 1000 + 100) / 1100)


@pytest.fixture(scope="module")
def small(isodepth_fit):
    """The additive law on 36 runs: the fit has compiled it already."""
    table = load_runs("isodepth", where="budget in (4.64e17, 1e19)")
    return Calibration.of(table, Spec(draws=200, tune=200, chains=2))


def told(record):
    return {name: value for name, value in record.items() if name != "seconds"}


def test_simulations_go_on_where_they_were(small, tmp_path, monkeypatch):
    folder, path = tmp_path / "new", tmp_path / "new" / SIMULATIONS
    first = simulations_of(small, 10, out=folder)
    lines = path.read_text().splitlines()
    assert [json.loads(line)["simulation"] for line in lines] == list(range(10))
    path.write_text("\n".join([*lines[:3], "{", *lines[4:7], lines[7][:200]]))

    made, words = [], []
    simulate = Calibration.simulate
    monkeypatch.setattr(Calibration, "simulate", lambda self, i: made.append(i) or simulate(self, i))
    again = simulations_of(small, 10, out=folder, progress=words.append)
    assert made == [3, 7, 8, 9]
    assert list(map(told, again)) == list(map(told, first)), "seed and number decide a simulation"
    assert any("2 damaged lines" in text for text in words)
    assert simulations_of(small, 10, out=folder) == again
    assert made == [3, 7, 8, 9]
    assert len({json.dumps(record["quantities"]) for record in again}) == 10


def fake(self, number):
    """A simulation that takes no time, calibrated."""
    rng = np.random.default_rng(number)
    return {
        "simulation": number, "settings": self.key, "divergences": 0, "r_hat": 1.0, "ess": 300, "again": False,
        "quantities": {
            name: [0.5, int(rng.integers(RANKED + 1)), float(rng.uniform())] for name in ("phi", "E", "g(4)")
        }, "seconds": 0.1,
    }  # fmt: skip


def test_a_folder_holds_one_calibration(small, tmp_path, monkeypatch):
    monkeypatch.setattr(Calibration, "simulate", fake)
    simulations_of(small, 10, out=tmp_path / "a")
    other = replace(small, spec=replace(small.spec, seed=1, law="coupled"))
    with pytest.raises(UsageError, match="law additive, not coupled; seed 0, not 1"):
        simulations_of(other, 10, out=tmp_path / "a")
    with pytest.raises(UsageError, match="design"):
        simulations_of(replace(small, design="0" * 16), 10, out=tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match="no calibration and not empty"):
        simulations_of(small, 10, out=tmp_path / "b")
    with pytest.raises(UsageError, match="is a file"):
        simulations_of(small, 10, out=tmp_path / "b" / "mine.txt")
    (tmp_path / "a" / "settings.json").write_text("{")
    with pytest.raises(FitError, match="cannot read"):
        simulations_of(small, 10, out=tmp_path / "a")
    for wrong in ({"count": 9}, {"count": 10, "jobs": 0}):
        with pytest.raises(UsageError, match="or more"):
            simulations_of(small, **wrong)


def test_a_line_of_another_calibration_is_made_again(small, tmp_path, monkeypatch):
    monkeypatch.setattr(Calibration, "simulate", fake)
    simulations_of(small, 10, out=tmp_path / "a")
    path = tmp_path / "a" / SIMULATIONS
    path.write_text(path.read_text().replace(small.key, "f" * 16, 1))
    words = []
    assert len(simulations_of(small, 10, out=tmp_path / "a", progress=words.append)) == 10
    assert any("1 damaged line " in text for text in words)


def test_a_failed_simulation_is_recorded_and_counted(small, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("all initial points failed")

    monkeypatch.setattr(sampling, "sample", broken)
    record = small.simulate(3)
    assert record["failed"] == "RuntimeError: all initial points failed"
    with pytest.raises(FitError, match="none of 1 simulations could be sampled"):
        summed(small.settings, [record])
    done = [fake(small, number) for number in range(200) if number != 3]
    result = summed(small.settings, [*done, record])
    assert result.failed == ((3, record["failed"]),)
    assert result.simulations == 200
    assert len(result.quantities["phi"].ranks) == 199
    assert result.as_dict()["failed"][0]["simulation"] == 3
    assert "not sampled at all: 1" in result.sentences[1]


def test_few_simulations_prove_nothing_and_names_are_explained(small):
    few, many = (summed(small.settings, [fake(small, number) for number in range(count)]) for count in (20, 200))
    assert few.passed
    low = few.quantities["phi"].coverage[-1].low
    assert few.sentences[0] == (
        "None of 3 quantities was shown to be off, which is no proof: 20 simulations show a 90 % interval to be too "
        f"narrow only if it holds the truth in less than {100 * low:.0f} % of them."
    )
    assert "calibrated, as far as 200 simulations tell" in many.sentences[0]
    assert few.meanings == ()
    phi = few.quantities["phi"]
    same = replace(few, quantities={"phi": phi, "a": few.quantities["E"], "g(4)": phi})
    assert same.meanings == (
        "a and b are the exponents of single terms, of size and of data: alpha and beta.",
        "g(4) is phi in other units here, and no check of its own.",
    )


def test_intervals_that_hold_too_many_truths_are_called_cautious(small):
    wide = judged("phi", *conjugate(1000, narrow=1.25))
    narrow = judged("E", *conjugate(1000, narrow=0.8))
    result = replace(
        summed(small.settings, [fake(small, number) for number in range(20)]), quantities={"phi": wide, "E": narrow}
    )
    assert result.cautious == ("phi",)
    assert result.sentences[0].endswith("Wider than needed (cautious): the intervals of phi.")


def test_a_design_of_fewer_runs_than_parameters_is_refused():
    table = load_runs("isodepth")
    with pytest.raises(FitError, match="a design of 5 runs for 7 free parameters"):
        Calibration.of(replace(table, runs=table.runs[-5:]), Spec(law="additive"))


def test_losses_out_of_range_are_a_failure_too(small, monkeypatch):
    predictive = trials.predictive
    monkeypatch.setattr(trials, "predictive", lambda *given: predictive(*given) + 1e4)
    with np.errstate(over="ignore"):
        assert "losses beyond what numbers hold" in small.simulate(0)["failed"]


def test_what_is_tried_of_the_default_model():
    trial = Calibration.of(load_runs("isodepth"), Spec.of(**SAMPLER))
    assert not trial.spec.drift
    rng = np.random.default_rng(0)
    theta = trials.sample_prior(trial.structure, trial.priors, 40, rng)
    found = trial.quantities(theta)
    assert list(found)[:8] == ["phi", "a", "b", "E", "k", "g(4)", "L*(1e20)", "N*(1e19)"]
    assert {"deviation_2", "deviation_4", "deviation_8", "deviation_spread", "sigma"} < set(found)
    worth = 4.0 ** found["phi"] * np.exp(found["deviation_4"])
    np.testing.assert_allclose(found["g(4)"], worth, rtol=1e-12)

    parameters = trials.named(theta[None], trial.structure, trial.inputs)
    np.testing.assert_allclose(np.exp(found["a"]), (parameters["alpha"] * parameters["k"]).values[0], rtol=1e-12)
    draws = {
        name: parameters[name].values.reshape(40, -1)[:, 0] for name in trial.structure.law.parameters
    }  # one recipe
    sizes = sizes_of(ISODEPTH, 4, injection_in="once")
    width = np.geomspace(128, 65536, 4000)
    n_once, n_rec, cost = (along(each, width) for each in (sizes.n_once, sizes.n_rec, sizes.flops_per_token))
    curves = law_loss(trial.structure.law, draws, n_once, n_rec, 4.0, 1e20 / cost)
    np.testing.assert_allclose(found["L*(1e20)"], curves.min(axis=1), rtol=1e-5)
    curves = law_loss(trial.structure.law, draws, n_once, n_rec, 4.0, 1e19 / cost)
    inside = np.abs(curves.argmin(axis=1) - 2000) < 1990
    best = along(sizes.n_unique, width[curves.argmin(axis=1)])
    np.testing.assert_allclose(found["N*(1e19)"][inside], best[inside], rtol=1e-2)
    assert inside.mean() > 0.5


@pytest.mark.parametrize("law", ["additive", "chinchilla"])
def test_tables_of_several_recipes(law):
    trial = Calibration.of(load_runs("isodepth-recipes"), Spec(law=law))
    theta = trials.sample_prior(trial.structure, trial.priors, 3, np.random.default_rng(0))
    found = trial.quantities(theta)
    assert all(values.shape == (3,) for values in found.values())
    assert len(found) == trial.structure.size + (3 if law == "additive" else 0)
    if law == "additive":
        np.testing.assert_allclose(found["g(4)"], 4.0 ** found["phi[baseline]"], rtol=1e-12)


@pytest.mark.slow
def test_two_processes_make_the_same_simulations(small):
    alone, together = simulations_of(small, 10), simulations_of(small, 10, jobs=2)
    assert list(map(told, together)) == list(map(told, alone))


@pytest.mark.slow
def test_coverage_of_a_small_design(small):
    """Sixty simulations: off by as much as .15-.2 in coverage would show."""
    trial = replace(small, spec=replace(small.spec, **SAMPLER))
    result = summed(trial.settings, simulations_of(trial, 60))
    assert result.passed, result.sentences
    assert result.failed == ()
    assert {"phi", "a", "b", "E", "g(4)", "L*(1e20)", "N*(1e19)", "sigma"} < set(result.quantities)
