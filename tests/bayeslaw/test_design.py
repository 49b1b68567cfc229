"""What to train next: beliefs, searches, aims, candidates, and whether proposals keep what they promise."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from bayeslaw import load_runs
from bayeslaw.design.aims import aim_of, expected_regrets, regret_of
from bayeslaw.design.belief import Belief
from bayeslaw.design.candidates import candidates
from bayeslaw.design.detection import detection, either_way, probability
from bayeslaw.design.knowledge import INFORMATION, SAME_AGAIN, Knowledge, runs_to_come
from bayeslaw.design.proposal import propose
from bayeslaw.design.search import cheapest, next_runs, ordered, within
from bayeslaw.errors import DecisionError, UsageError
from bayeslaw.fit import fit
from bayeslaw.schema import STEP
from bayeslaw.simulate import simulate

LAW = {"E": 1.6, "A": 120.0, "B": 900.0, "alpha": 0.27, "beta": 0.34, "phi": 0.45}


def made(candidates=30, quantities=2, seed=0, draws=3000):
    """A belief whose covariances are known, with costs."""
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((draws, 5))
    eta = 0.01 * hidden @ rng.standard_normal((5, candidates))
    q = hidden @ rng.standard_normal((5, quantities))
    noise = rng.uniform(1e-6, 4e-5, candidates)
    return Belief.of(q, eta, noise=noise), np.exp(rng.uniform(0, 2, candidates)), q, eta


def after(belief, runs):
    return belief.observe_all(runs).total


def test_observing_runs_is_conditioning_a_normal_distribution():
    belief, _, q, eta = made()
    runs = [3, 17, 8]
    joint = np.cov(np.column_stack([q, eta]), rowvar=False)
    seen = [2 + run for run in runs]
    gram = joint[np.ix_(seen, seen)] + np.diag(belief.noise[runs])
    left = joint - joint[:, seen] @ np.linalg.solve(gram, joint[seen])
    found = belief.observe_all(runs)
    np.testing.assert_allclose(found.variance, np.diag(left)[:2], rtol=1e-9)
    np.testing.assert_allclose(found.cross, left[:2, 2:], atol=1e-12)
    np.testing.assert_allclose(found.among, left[2:, 2:], atol=1e-12)
    assert belief.total == pytest.approx(1)  # each quantity one half of it


def test_a_run_is_taken_back_and_exchanged():
    belief, *_ = made()
    there = belief.observe_all([3, 17, 8])
    back = there.forget(17)
    np.testing.assert_allclose(back.among, belief.observe_all([3, 8]).among, atol=1e-12)
    total = there.exchanges([3, 17, 8])
    for row, kept in enumerate(([17, 8], [3, 8], [3, 17])):
        for new in (0, 11, 29):
            assert total[row, new] == pytest.approx(after(belief, [*kept, new]))
    gains = belief.gains()
    assert gains[5] == pytest.approx(belief.total - after(belief, [5]))


def test_errors_that_runs_share_are_told_apart_less():
    _, _, q, eta = made()
    noise = np.full(30, 1e-6)
    free = Belief.of(q, eta, noise=noise)
    tied = Belief.of(q, eta, noise=noise, shared=np.full((30, 30), 1e-3))
    assert after(tied, [0]) > after(free, [0])
    # Endless runs of one cell leave its effect: differences within it are as sharp as ever.
    assert after(tied, range(30)) < after(tied, [0])


@pytest.mark.parametrize("seed", range(4))
def test_searches_find_nearly_the_best_sets(seed):
    belief, cost, *_ = made(candidates=12, seed=seed)
    sets = [runs for size in range(1, 6) for runs in itertools.combinations(range(12), size)]
    totals = {runs: after(belief, runs) for runs in sets}
    spent = {runs: float(cost[list(runs)].sum()) for runs in sets}
    purse = 9.0
    best = min(totals[runs] for runs in sets if spent[runs] <= purse)
    chosen = within(belief, cost, purse)
    assert cost[chosen].sum() <= purse
    assert after(belief, chosen) <= 1.1 * best
    assert len(within(belief, cost, purse, most=2)) <= 2

    goal = 1.5 * best
    least = min(spent[runs] for runs in sets if totals[runs] <= goal)
    reached = cheapest(belief, cost, goal)
    assert after(belief, reached) <= goal
    assert cost[reached].sum() <= 1.1 * least
    assert cheapest(belief, cost, goal, purse=0.5 * least) is None
    assert cheapest(belief, cost, 1e-12) is None


def test_exchanges_better_what_ratios_choose():
    """A cheap useless run has the best ratio and fills the purse."""
    q = np.random.default_rng(0).standard_normal((4000, 1))
    eta = np.column_stack([0.1 * q, q])
    belief = Belief.of(q, eta, noise=np.array([0.1, 0.1]))
    cost = np.array([0.1, 10.0])
    assert (belief.gains() / cost).argmax() == 0
    assert within(belief, cost, 10.0) == [1]
    assert next_runs(belief, cost) == [0]
    assert next_runs(belief, cost, most=2) == [0, 1]
    assert next_runs(belief, cost, most=2, purse=10.0) == [0]
    assert ordered(belief, cost, [1, 0]) == [0, 1]
    assert within(belief, cost, 0.05) == []


def test_a_proposal_over_more_candidates_takes_in_proportion():
    seconds = {}
    for count in (150, 600):
        belief, cost, *_ = made(candidates=count, draws=1000)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            within(belief, cost, 15.0)
            times.append(time.perf_counter() - start)
        seconds[count] = min(times)
    assert seconds[600] < 40 * seconds[150]  # quadratic is 16


def test_student_errors_say_less_than_their_scale():
    """Fisher information of the centre by quadrature."""
    from scipy import integrate, stats

    density = stats.t(4)
    score = 1e-5
    information, _ = integrate.quad(
        lambda x: ((density.logpdf(x + score) - density.logpdf(x - score)) / (2 * score)) ** 2 * density.pdf(x), -60, 60
    )
    assert pytest.approx(1 / information, rel=1e-3) == INFORMATION


def test_expected_regret_of_two_actions_is_the_closed_form():
    from scipy.stats import norm

    rng = np.random.default_rng(0)
    x = rng.standard_normal(40_000)
    actions = np.column_stack([2 + 0 * x, 2.01 + 0.02 * x])
    eta = (0.03 * x)[:, None]
    among, noise = np.array([[eta.var(ddof=1)]]), np.array([0.02**2])
    now, then = expected_regrets(actions, eta, among, noise, seed=1)
    assert now == pytest.approx(2 - actions.min(axis=1).mean())
    # The second action's expected loss given the run is N(2.01, s^2): its least with 2 has a known mean.
    s = 0.02 * np.sqrt(0.03**2 / (0.03**2 + 0.02**2))
    z = 0.01 / s
    value = s * (norm.pdf(z) - z * norm.cdf(-z))
    assert now - then == pytest.approx(value, rel=0.05)
    assert then < now


def test_parts_of_a_regret_are_the_differences_that_matter():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((5000, 2))
    common = rng.standard_normal(5000)
    actions = 2 + 0.01 * np.column_stack([common, common + x[:, 0], common + 5 + x[:, 1]])
    aim = regret_of("regret(1)", actions)
    # What all actions share decides nothing, and an action that is never best does not either.
    assert abs(np.corrcoef(aim.parts[:, 0], common)[0, 1]) < 0.05
    assert abs(np.corrcoef(aim.parts[:, 0], x[:, 0])[0, 1]) > 0.95
    assert aim.now > 0
    assert aim.parts.shape[1] == 1


def test_detection_is_what_simulated_beliefs_show():
    """delta ~ N(0, .3^2), data with error .04: the rate of declaring a true .1."""
    rng = np.random.default_rng(0)
    v0, error = 0.3**2, 0.04**2
    v1 = 1 / (1 / v0 + 1 / error)
    mean = v1 / error * (0.1 + np.sqrt(error) * rng.standard_normal(200_000))
    rate = (mean / np.sqrt(v1) >= 1.6449).mean()
    assert probability(0.1, 0.0, v0, v1) == pytest.approx(rate, abs=0.005)
    assert probability(0.1, 0.0, v0, v0) == 0  # nothing seen, nothing declared
    assert probability(0.1, 1.0, v0, v0) == 1  # declared already
    assert either_way(0.1, 0.0, v0, v1) == pytest.approx(rate, abs=0.005)

    draws = np.sqrt(v0) * np.random.default_rng(1).standard_normal(1000)
    found = detection(draws, [v0, 0.1, 0.01, 0.002, 0.0008, 0.0007], difference=0.1, power=0.8, endless=0.0005)
    assert list(found.by_runs) == [4, 5]
    assert found.needed == 4
    assert found.endless > found.by_runs[5] > found.by_runs[4] >= 0.8
    limited = detection(draws, [v0, 0.003], difference=0.1, power=0.8, endless=0.003)
    assert limited.needed is None
    assert "endless ones of these candidates leave an sd of 0.055 and come to 0.55." in str(limited)


@pytest.fixture(scope="module")
def knowledge(isodepth_fit):
    return Knowledge.of(isodepth_fit, ["baseline", "new"])


def test_candidates_can_be_trained(isodepth_fit, knowledge):
    purse = 1e20
    runs = candidates(isodepth_fit, knowledge.families, recipes=["baseline"], purse=purse)
    per_parameter = [run.tokens / run.n_unique for run in runs]
    table = isodepth_fit.runs
    trained = table["tokens"] / table["n_unique"]
    assert {run.recurrences for run in runs} == {1, 2, 4, 8}
    for run in runs:
        assert run.d_model % 128 == 0
        assert run.tokens % 2**18 == 0
        assert run.flops == pytest.approx(run.budget, rel=0.02)
        assert run.flops <= purse
    assert min(run.d_model for run in runs) == table["d_model"].min()
    assert table["d_model"].max() < max(run.d_model for run in runs) <= 1.4 * table["d_model"].max()
    assert max(run.budget for run in runs) == pytest.approx(2.15e19 * STEP)
    assert trained.min() * 0.99 <= min(per_parameter)
    assert max(per_parameter) <= trained.max() * 1.01
    # All that was trained can be trained again, as a run with another seed.
    again = [run for run in runs if run.replicates]
    assert {run.replicates for run in again} == set(table["run_id"])
    assert {run.seed for run in again} == {1}
    assert {run.seed for run in runs if not run.replicates} == {0}
    fewer = candidates(
        isodepth_fit, knowledge.families, recipes=["new"], purse=purse, recurrences=[1, 4], budgets=[1e18]
    )
    assert {(run.recipe, run.recurrences, run.budget) for run in fewer} == {
        ("baseline", 1, 1e18), ("new", 4, 1e18)
    }  # fmt: skip
    both = candidates(isodepth_fit, knowledge.families, recipes=["new", "baseline"], purse=purse, recurrences=[1, 4])
    assert {(run.recipe, run.recurrences) for run in both} == {("baseline", 1), ("new", 4), ("baseline", 4)}


def test_candidates_that_cannot_be_are_refused(isodepth_fit, knowledge):
    with pytest.raises(DecisionError, match="cost more than the purse"):
        candidates(isodepth_fit, knowledge.families, recipes=["baseline"], purse=1e17)
    with pytest.raises(DecisionError, match="tokens per parameter"):
        candidates(isodepth_fit, knowledge.families, recipes=["baseline"], purse=1e25, widths=[128], budgets=[1e20])
    with pytest.raises(UsageError, match="multiples of 128"):
        candidates(isodepth_fit, knowledge.families, recipes=["baseline"], purse=1e20, widths=[700])
    with pytest.raises(UsageError, match="divisors of 16"):
        candidates(isodepth_fit, knowledge.families, recipes=["baseline"], purse=1e20, recurrences=[3])


def test_losses_are_the_laws(isodepth_fit, knowledge):
    from bayeslaw.predict import predict

    runs = candidates(isodepth_fit, knowledge.families, recipes=["baseline"], purse=1e20)
    eta, noise, shared = runs_to_come(knowledge, [run for run in runs if not run.replicates])
    run = next(run for run in runs if not run.replicates and run.recurrences == 4)
    at = [run for run in runs if not run.replicates].index(run)
    there = predict(isodepth_fit, tokens=run.tokens, recurrences=4, width_scale=run.d_model / 64).loss_mean
    np.testing.assert_allclose(np.exp(eta[:, at]), there)
    assert noise == pytest.approx(float((isodepth_fit.draws()["sigma"] ** 2).mean()))
    assert not shared.any()


def with_cells(fit, tau):
    """The fit, as if it had cell effects of that spread."""
    posterior = fit.posterior
    posterior["tau_cell"] = xr.full_like(posterior["sigma"], tau)
    return replace(fit, data=fit.data.assign({"posterior": xr.DataTree(posterior)}))


def test_effects_of_cells_are_shared_and_partly_known(isodepth_fit):
    tau = 0.01
    known = Knowledge.of(with_cells(isodepth_fit, tau), ["baseline"])
    runs = candidates(
        known.fit, known.families, recipes=["baseline"], purse=1e21, recurrences=[4], budgets=[1e19, 5e18]
    )
    trained = [i for i, run in enumerate(runs) if run.budget == 1e19 and not run.replicates]
    fresh = [i for i, run in enumerate(runs) if run.budget == 5e18]
    eta, _, shared = runs_to_come(known, runs)
    np.testing.assert_allclose(shared[np.ix_(fresh, fresh)], tau**2)
    assert not shared[np.ix_(fresh, trained)].any()
    # Five runs have told most of their cell's effect.
    own = float((isodepth_fit.draws()["sigma"] ** 2).mean())
    np.testing.assert_allclose(shared[np.ix_(trained, trained)], 1 / (1 / tau**2 + 5 / own))
    table = isodepth_fit.runs
    cell = table[(table["budget"] == 1e19) & (table["recurrences"] == 4)]
    off = np.log(cell["loss"]).mean() - _curve(known, cell)
    moved = eta[:, trained[0]] - known.log_losses([runs[trained[0]]])[:, 0]
    np.testing.assert_allclose(moved, off * 5 * tau**2 / (5 * tau**2 + own), atol=1e-8)


def _curve(known, cell):
    """Mean log of the law over trained runs, for every draw."""
    runs = candidates(known.fit, known.families, recipes=["baseline"], purse=1e21, recurrences=[4], budgets=[1e19])
    return known.log_losses([run for run in runs if run.replicates in set(cell["run_id"])]).mean(axis=1)


def test_a_second_seed_says_less_than_another_run(isodepth_fit, knowledge):
    runs = candidates(isodepth_fit, knowledge.families, recipes=["baseline"], purse=1e20, recurrences=[4])
    again = [i for i, run in enumerate(runs) if run.replicates]
    eta, noise, shared = runs_to_come(knowledge, runs)
    own = float((isodepth_fit.draws()["sigma"] ** 2).mean())
    assert noise[again] == pytest.approx((1 - SAME_AGAIN) * own)
    assert np.diag(shared)[again] == pytest.approx(SAME_AGAIN * (1 - SAME_AGAIN) * own)
    phi = isodepth_fit.draws()["phi"][:, None]
    as_new = Belief.of(phi, knowledge.log_losses(runs), noise=np.full(len(runs), own))
    assert (Belief.of(phi, eta, noise=noise, shared=shared).gains()[again] < 0.5 * as_new.gains()[again]).all()


@pytest.mark.parametrize(
    ("text", "scale"), [("phi", ""), ("g(4)", "log g"), (" n_opt(2.15e19, 4) ", "log N*"), ("delta_phi:new", "")]
)
def test_aims(knowledge, text, scale):
    aim = aim_of(text, knowledge)
    assert aim.scale == scale
    assert aim.now == pytest.approx(aim.parts.std(ddof=1))


def test_aims_are_what_the_fit_says(isodepth_fit, knowledge):
    phi = isodepth_fit.draws()["phi"]
    np.testing.assert_array_equal(aim_of("phi", knowledge).parts[:, 0], phi)
    np.testing.assert_allclose(aim_of("g(4)", knowledge).parts[:, 0], phi * np.log(4))
    from bayeslaw.allocate import allocate

    found = allocate(isodepth_fit, flops=2.15e19)
    aim = aim_of("regret(2.15e19)", knowledge)
    assert aim.now == pytest.approx(found.expected_regret, rel=0.5)
    assert aim_of("n_opt(2.15e19)", knowledge).text == "n_opt(2.15e+19,1)"


def test_a_further_recipe_is_what_the_prior_says(isodepth_fit, knowledge):
    delta = aim_of("delta_phi:new", knowledge).parts[:, 0]
    # Two recipes around a mean that one of them tells: sqrt(2) spreads apart, the spread of a log-normal prior.
    spread = isodepth_fit.attrs["priors"]["spread"]
    expected = np.sqrt(2 * spread["median"] ** 2 * np.exp(2 * spread["sd"] ** 2))
    assert delta.std() == pytest.approx(expected, rel=0.2)
    assert abs(delta.mean()) < 0.1 * expected
    # Nothing but its loops differs, and its log loss is straight in the difference.
    runs = candidates(isodepth_fit, knowledge.families, recipes=["new"], purse=1e20, recurrences=[4])
    base = [replace(run, recipe="baseline") for run in runs]
    change = knowledge.log_losses(runs) - knowledge.log_losses(base)
    assert abs(np.corrcoef(change[:, 0], delta)[0, 1]) > 0.98


@pytest.mark.parametrize(
    "text", ["", "psi", "g(1)", "g()", "g(4,2)", "n_opt()", "n_opt(-1)", "regret(nan)", "delta_phi", "phi(4)", "g(x)"]
)
def test_aims_that_cannot_be_meant(knowledge, text):
    with pytest.raises(UsageError, match="phi, g"):
        aim_of(text, knowledge)


def test_a_recipe_against_itself(knowledge):
    with pytest.raises(UsageError, match="against itself"):
        aim_of("delta_phi:baseline", knowledge)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"purse": 0.0}, "--purse"),
        ({"purse": float("nan")}, "--purse"),
        ({"about": []}, "--about"),
        ({"about": ["phi", "phi"]}, "--about"),
        ({"most": 0}, "--most"),
        ({"until": 0.0}, "--until"),
        ({"until": 0.1, "about": ["phi", "g(4)"]}, "--until"),
        ({"power": 1.0}, "--power"),
        ({"recipe": "nobody"}, "nobody"),
    ],
)
def test_proposals_that_cannot_be_meant(isodepth_fit, settings, match):
    with pytest.raises((UsageError, DecisionError), match=match):
        propose(isodepth_fit, **{"purse": 1e19, "about": "phi", **settings})


def test_a_proposal(isodepth_fit):
    found = propose(isodepth_fit, purse=2e19, about=["phi", "n_opt(2.15e19,4)"])
    assert 0 < found.flops <= 2e19
    assert len({(run.recipe, run.recurrences, run.d_model, run.tokens) for run in found.runs}) == len(found.runs)
    assert found.after.shape == (2, len(found.runs) + 1)
    assert (np.diff(found.after, axis=1) <= 1e-12).all()
    assert (found.after[:, -1] < found.after[:, 0]).all()
    assert found.after.mean(axis=0)[-1] <= found.after_single.mean() + 1e-9
    answer = found.as_dict()
    assert answer["candidates"] == found.considered
    assert [run["after"]["phi"] for run in answer["runs"]] == found.after[0, 1:].tolist()
    assert found.next is not None
    assert answer["next"] == found.next.as_dict()
    assert found.next.flops <= 2e19


def test_a_regret_comes_down(isodepth_fit):
    found = propose(isodepth_fit, purse=1e20, about="regret(1e21)")
    assert (np.diff(found.after[0]) <= 0.02 * found.after[0, 0]).all()
    assert 0 <= found.after[0, -1] < 0.95 * found.after[0, 0]
    assert "expected regret" in found.sentences()[0]
    goal = 0.5 * (found.after[0, 0] + found.after[0, -1])
    cheaper = propose(isodepth_fit, purse=1e20, about="regret(1e21)", until=goal)
    assert cheaper.after[0, -1] <= goal
    assert cheaper.flops < found.flops


def test_until(isodepth_fit):
    now = float(isodepth_fit.draws()["phi"].std(ddof=1))
    purse = propose(isodepth_fit, purse=1e20, about="phi")
    goal = 0.5 * (now + purse.after[0, -1])
    found = propose(isodepth_fit, purse=1e20, about="phi", until=goal)
    assert found.after[0, -1] <= goal
    assert found.flops < 0.8 * purse.flops
    far = propose(isodepth_fit, purse=1e20, about="phi", until=0.01 * now)
    assert "not reached" in far.notes[0]
    there = propose(isodepth_fit, purse=1e20, about="phi", until=2 * now)
    assert there.runs == ()
    assert "already" in there.notes[0]


def test_a_case_study_beforehand(isodepth_fit):
    found = propose(isodepth_fit, purse=3e19, about="delta_phi:new")
    assert {run.recipe for run in found.runs} == {"new"}
    assert {run.recurrences for run in found.runs} <= {2, 4, 8}
    # No deviations in this law: the difference is soon known, and what stays open is the baseline's own phi.
    assert found.detection.needed <= 8
    assert found.endless[0] < isodepth_fit.draws()["phi"].std()
    assert found.detection.by_runs[4] <= found.detection.by_runs[len(found.runs)]
    assert any("no run of new" in note for note in found.notes)


def test_a_pooled_fit_does_not_say_what_a_new_recipe_would_be(isodepth_fit):
    pooled = replace(isodepth_fit, spec=replace(isodepth_fit.spec, pooling={"phi": "shared"}))
    with pytest.raises(DecisionError, match="pooling of phi"):
        propose(pooled, purse=3e19, about="delta_phi:new")


@pytest.mark.parametrize("sigma", [0.002, 0.006])
def test_a_proposal_keeps_its_promise(sigma):
    """Runs of a known law: train what was proposed, fit again, and the sd of phi is the one that was expected."""
    published = load_runs("isodepth", where="budget <= 1e18").runs
    settings = {"law": "additive", "draws": 1000, "chains": 2}
    start = simulate(published, parameters=LAW, sigma=sigma, seed=1)
    before = fit(start, **settings)
    found = propose(before, purse=3e19, about="phi")
    new = start.iloc[:1].loc[start.index[:1].repeat(len(found.runs))].reset_index(drop=True)
    for i, run in enumerate(found.runs):
        member = run.architecture
        new.loc[i, ["recurrences", "width_scale"]] = float(run.recurrences), member.width_scale
        counts = {name: round(getattr(member, name)) for name in ("n_once", "n_shared", "n_injection", "n_unique")}
        facts = {
            "run_id": f"new/{i}", "d_model": run.d_model, "shared_layers": member.shared_layers, "tokens": run.tokens,
            "budget": run.budget, "flops": run.flops, "flops_per_token": member.flops_per_token,
            "injection": member.injection, "backprop_recurrences": member.backprop_recurrences,
            "training_run": f"new/{i}", **counts,
        }  # fmt: skip
        for name, value in facts.items():
            new.loc[i, name] = value
    import pandas as pd

    new = simulate(new, parameters=LAW, sigma=sigma, seed=2)
    both = pd.concat([start.assign(training_run=start["run_id"]), new], ignore_index=True)
    again = fit(both, **settings)
    promised, kept = found.after[0, -1], float(again.draws()["phi"].std())
    assert promised < 0.8 * found.after[0, 0]
    assert kept == pytest.approx(promised, rel=0.25)
