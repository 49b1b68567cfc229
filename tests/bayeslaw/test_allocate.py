"""The recommendation: constraints alone and together, objectives, recipes, and what cannot be."""

import dataclasses

import numpy as np
import pytest

from bayeslaw.allocate import allocate
from bayeslaw.constraints import Constraints
from bayeslaw.errors import DecisionError, UsageError
from bayeslaw.fit import fit
from bayeslaw.location import Location, location_of
from bayeslaw.posterior import Fit
from bayeslaw.predict import family_of, law_loss
from bayeslaw.runs import load_runs
from bayeslaw.simulate import simulate
from bayeslaw.targets import target
from bayeslaw.throughput import throughput_of
from bayeslaw.tradeoffs import growth, pareto

FLOPS = 2.15e19
TRUTH = {"E": 1.6, "A": 28.0, "B": 900.0, "alpha": 0.2, "beta": 0.37, "phi": 0.45}


def timed(found: Fit, *, devices=("gpu",), count=1) -> Fit:
    """The fit with speeds as if each device did 4e14 FLOP/s less half a microsecond a token."""
    runs = found.runs.copy()
    runs["tokens_per_second"] = count / (runs["flops_per_token"] / 4e14 + 5e-7)
    runs["device"] = [devices[row % len(devices)] for row in range(len(runs))]
    runs["device_count"] = count
    return dataclasses.replace(found, runs=runs)


@pytest.fixture(scope="module")
def recipes_fit():
    """Three recipes of known phi: .45, .25 and 1.1, so that loops of the last are worth their compute."""
    design = load_runs("isodepth-recipes").runs
    phis = {"baseline": 0.45, "truncated_bptt": 0.25, "hyperconnections": 1.1}
    runs = simulate(
        design, parameters=TRUTH, sigma=0.003, seed=3, by_recipe={name: {"phi": phi} for name, phi in phis.items()}
    )
    return fit(runs.drop(columns="loss_se"), law="additive")


def test_a_constraint_holds_for_every_candidate_and_the_best_of_them_is_taken(isodepth_fit):
    family = family_of(isodepth_fit)
    for constraints, keeps in (
        (Constraints(memory=4e8), lambda run: 2 * run.n_unique <= 4e8),
        (Constraints(memory=4e8, precision="float32"), lambda run: 4 * run.n_unique <= 4e8),
        (Constraints(inference_flops=6e8), lambda run: run.inference_flops <= 6e8),
        (Constraints(data_tokens=1.5e9), lambda run: run.tokens <= 1.5e9),
        (Constraints(data_tokens=1.5e9, epochs=2), lambda run: run.tokens <= 3e9),
        (Constraints(d_model=1024), lambda run: run.d_model == 1024),
        (
            Constraints(lifetime_tokens=1e10),
            lambda run: run.flops + 1e10 * run.inference_flops <= FLOPS * 1.001,
        ),
        (
            Constraints(memory=4e8, data_tokens=4e9, inference_flops=7e8),
            lambda run: 2 * run.n_unique <= 4e8 and run.tokens <= 4e9 and run.inference_flops <= 7e8,
        ),
    ):
        made = allocate(isodepth_fit, flops=FLOPS, constraints=constraints)
        assert all(keeps(run) for run in made.candidates), constraints
        assert all(run.flops <= FLOPS * 1.001 for run in made.candidates)
        best = made.recommended.trainable
        assert best.loss.mean() == min(run.loss.mean() for run in made.candidates)
        # Against every trainable width that keeps the constraints, by brute force.
        law, convention = isodepth_fit.law, isodepth_fit.convention
        for r in (1, 2, 4, 8):
            option = next(option for option in made.options if option.recurrences == r)
            for width in range(128, 6000, 128):
                member = family.architecture(width, r)
                tokens = (
                    FLOPS - constraints.lifetime_tokens * member.inference_flops_per_token
                ) / member.flops_per_token
                if constraints.data_tokens:
                    tokens = min(tokens, constraints.data_tokens * (constraints.epochs or 1))
                tokens = 2**18 * int(tokens / 2**18)
                run = dataclasses.replace(
                    best, d_model=width, n_unique=round(member.n_unique), tokens=tokens,
                    flops=tokens * member.flops_per_token, inference_flops=member.inference_flops_per_token,
                )  # fmt: skip
                if tokens > 0 and keeps(run):
                    parts = family.split(width, r, **convention)
                    loss = law_loss(law, isodepth_fit.draws(recurrences=r), *parts, r, tokens)[:, 0].mean()
                    assert loss > option.trainable.loss.mean() - 2e-4, (constraints, r, width)


def test_where_memory_is_short_a_loop_wins(isodepth_fit):
    """The reason to loop: with room for few parameters and plenty of compute, sharing them pays."""
    assert allocate(isodepth_fit, flops=FLOPS).recommended.recurrences == 1
    short = allocate(isodepth_fit, flops=FLOPS, constraints=Constraints(memory=1e8))
    assert short.recommended.recurrences > 1
    assert short.recommended.optimum.at_largest == 1
    assert any("by memory" in note for note in short.notes)


def test_device_hours_by_the_speed_of_the_runs(isodepth_fit):
    found = timed(isodepth_fit, count=2)
    speed = throughput_of(found.runs)
    assert (1 / speed.per_flop, speed.overhead) == pytest.approx((4e14, 5e-7), rel=1e-6)
    assert speed.scatter < 1e-9
    both = allocate(found, flops=FLOPS, constraints=Constraints(gpu_hours=8))
    for run in both.candidates:
        seconds = run.tokens * (run.flops / run.tokens / 4e14 + 5e-7)
        assert seconds <= 8 * 3600 * (1 + 1e-9)
    assert any("device time holds the run back: it takes " in note for note in both.notes)
    alone = allocate(found, constraints=Constraints(gpu_hours=8))
    assert alone.flops == pytest.approx(alone.recommended.trainable.flops)
    assert alone.flops <= 8 * 3600 * 4e14
    more = allocate(found, constraints=Constraints(gpu_hours=80))
    assert more.recommended.trainable.loss.mean() < alone.recommended.trainable.loss.mean()


def test_device_hours_ask_for_one_device(isodepth_fit):
    with pytest.raises(DecisionError, match="tokens_per_second"):
        allocate(isodepth_fit, constraints=Constraints(gpu_hours=8))
    two = timed(isodepth_fit, devices=("a", "b"))
    with pytest.raises(DecisionError, match="a and b"):
        allocate(two, constraints=Constraints(gpu_hours=8))
    with pytest.raises(DecisionError, match="allowed: a, b"):
        allocate(two, constraints=Constraints(gpu_hours=8, device="c"))
    assert allocate(two, constraints=Constraints(gpu_hours=8, device="b")).flops > 0


def test_lifetime_inference_makes_models_smaller(isodepth_fit):
    sizes = [
        allocate(
            isodepth_fit, flops=FLOPS, constraints=Constraints(lifetime_tokens=tokens)
        ).recommended.optimum.n_unique.mean()
        for tokens in (0, 1e9, 1e10)
    ]
    assert sizes[0] > sizes[1] > sizes[2]


def test_data_beyond_what_there_is_are_said(isodepth_fit):
    once = allocate(isodepth_fit, flops=FLOPS, constraints=Constraints(data_tokens=1e9))
    twice = allocate(isodepth_fit, flops=FLOPS, constraints=Constraints(data_tokens=1e9, epochs=4))
    assert once.recommended.trainable.tokens <= 1e9 < twice.recommended.trainable.tokens
    assert not any("passed over" in note for note in once.notes)
    assert any("passed over" in note and "takes repeated tokens for new" in note for note in twice.notes)


@pytest.mark.parametrize(
    ("constraints", "said"),
    [
        ({"memory": 1e6}, r"r = 8 is left out: memory of 1e\+06 bytes: width 128 takes 2.429e\+06, 2.43 times"),
        ({"inference_flops": 1e7}, "inference of 1e\\+07 FLOPs per generated token"),
        ({"data_tokens": 1000}, "data of 1000 tokens: width 128"),
        ({"memory": 1e8, "d_model": 4096}, "memory of 1e\\+08 bytes: width 4096 takes"),
        ({"lifetime_tokens": 1e15}, "budget of 2.15e\\+19 FLOPs: width 128"),
    ],
)
def test_an_infeasible_set_names_the_constraint_and_how_much_it_lacks(isodepth_fit, constraints, said):
    with pytest.raises(DecisionError, match=said):
        allocate(isodepth_fit, flops=FLOPS, constraints=Constraints(**constraints))


def test_what_one_r_cannot_another_may(isodepth_fit):
    """Memory for the smallest looped models only: the plain one is left out with its reason."""
    made = allocate(isodepth_fit, flops=FLOPS, constraints=Constraints(memory=3e6))
    assert {option.recurrences for option in made.options} == {8}
    assert [note.split(" is left out")[0] for note in made.notes if "left out" in note] == ["r = 1", "r = 2", "r = 4"]
    assert made.plain is None


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"memory": -1}, "--memory -1"),
        ({"memory": float("nan")}, "--memory nan"),
        ({"precision": "fp3", "memory": 1e9}, "allowed: float32, bfloat16"),
        ({"epochs": 2}, "--data-tokens"),
        ({"epochs": 0.5, "data_tokens": 1e9}, "1 or more"),
        ({"lifetime_tokens": float("inf")}, "--lifetime-tokens"),
        ({"device": "a"}, "without --gpu-hours"),
    ],
)
def test_bounds_that_mean_nothing(bounds, said):
    with pytest.raises(UsageError, match=said):
        Constraints(**bounds)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({}, "no budget"),
        ({"constraints": Constraints(lifetime_tokens=1e9, gpu_hours=1)}, "without --flops"),
        ({"flops": FLOPS, "objective": "luck"}, "mean, quantile, regret"),
        ({"flops": FLOPS, "quantile": 0.2}, "upper quantile"),
        ({"flops": FLOPS, "constraints": Constraints(d_model=1000)}, "the nearest is 1024"),
    ],
)
def test_questions_that_cannot_be_meant(isodepth_fit, call, said):
    with pytest.raises(UsageError, match=said):
        allocate(isodepth_fit, **call)


def test_objectives_have_least_of_what_they_name(isodepth_fit):
    made = {
        name: allocate(isodepth_fit, flops=3e22, objective=name, quantile=0.9)
        for name in ("mean", "quantile", "regret")
    }
    best = np.min([run.loss for run in made["mean"].candidates], axis=0)
    for measure, name in (
        (lambda run: run.loss.mean(), "mean"),
        (lambda run: np.quantile(run.loss, 0.9), "quantile"),
        (lambda run: (run.loss - best).max(), "regret"),
    ):
        chosen = measure(made[name].recommended.trainable)
        assert chosen == pytest.approx(min(measure(run) for run in made[name].candidates), rel=1e-12)


def test_no_recommendation_costs_more_than_its_budget(isodepth_fit):
    for flops in (4e13, 1e15, 2.15e19):
        made = allocate(isodepth_fit, flops=flops)
        assert all(run.flops <= flops * (1 + 1e-9) for run in made.candidates)


def test_a_binding_limit_and_the_objective_are_said(isodepth_fit):
    short = allocate(isodepth_fit, flops=FLOPS, constraints=Constraints(data_tokens=3e9), objective="regret")
    assert any(note.startswith("data holds the run back") for note in short.notes)
    assert "least largest regret of any draw" in str(short)
    assert short.as_dict()["objective_value"] == pytest.approx(short.objective_value)
    spent = allocate(isodepth_fit, flops=FLOPS, constraints=Constraints(lifetime_tokens=1e10))
    share = 1e10 * spent.recommended.trainable.inference_flops / FLOPS
    assert f"{share:.0%} of them to generate 10B tokens" in str(spent)
    assert "best size lies" not in str(allocate(isodepth_fit, flops=FLOPS, constraints=Constraints(d_model=1024)))


def test_recipes_and_their_probabilities(recipes_fit):
    made = allocate(recipes_fit, flops=FLOPS)
    assert {(option.recipe, option.recurrences) for option in made.options} == {
        ("baseline", 1), *((name, r) for name in recipes_fit.recipes for r in (2, 4, 8))
    }  # fmt: skip
    assert sum(option.probability_best for option in made.options) == pytest.approx(1)
    assert made.recipe == "hyperconnections"
    assert made.recommended.recurrences == 8
    assert set(made.as_dict()["recipes"]) == set(recipes_fit.recipes)
    assert "hyperconnections, r = 8" in str(made)
    assert "Next comes hyperconnections, r = 4" in str(made)
    one = allocate(recipes_fit, flops=FLOPS, recipe="truncated_bptt")
    assert {option.recipe for option in one.options} == {"truncated_bptt"}
    assert "recurrences" in one.as_dict()


def test_recipes_whose_laws_differ_each_have_their_plain_model(recipes_fit):
    """Any parameter of the core that differs by recipe makes another network of r = 1, too."""
    import xarray as xr

    posterior = recipes_fit.posterior
    tree = recipes_fit.data.copy()
    alpha = posterior["alpha"] * xr.ones_like(posterior["recipe"], dtype=float)
    tree["posterior"] = xr.DataTree(posterior.assign(alpha=alpha))
    made = allocate(dataclasses.replace(recipes_fit, data=tree), flops=FLOPS)
    assert {option.recipe for option in made.options if option.recurrences == 1} == set(recipes_fit.recipes)


def test_location_is_learnt_from_the_cells(isodepth_fit):
    """The additive law puts N* 1.1 to 1.5 times too high: its intervals must know."""
    found = location_of(isodepth_fit)
    assert found.cells == 24
    assert 0.1 < found.tau < 0.3
    made = allocate(isodepth_fit, flops=FLOPS)
    for option in made.options:
        alone, with_noise = (np.log(draws).std() for draws in (option.optimum.n_unique, option.located.n_unique))
        assert with_noise == pytest.approx(np.hypot(alone, found.tau), rel=0.1)
        assert np.median(option.located.n_unique) == pytest.approx(np.median(option.optimum.n_unique), rel=0.05)
    few = dataclasses.replace(isodepth_fit, runs=isodepth_fit.runs.iloc[[0, 5, 40]])
    assert location_of(few) == Location(tau=0.0, cells=0)


def test_location_of_data_from_the_law_itself_is_small(isodepth_fit):
    runs = simulate(load_runs("isodepth").runs, parameters=TRUTH, sigma=0.001, seed=1)
    assert location_of(fit(runs.drop(columns="loss_se"), law="additive")).tau < 0.05


def test_pareto_front_is_beaten_by_nothing(isodepth_fit):
    front = pareto(isodepth_fit, flops=FLOPS)
    costs = np.array([(run.n_unique, run.inference_flops, run.loss.mean()) for run in front])
    for row in costs:
        assert not ((costs <= row).all(axis=1) & (costs < row).any(axis=1)).any()
    assert {run.recurrences for run in front} == {1, 2, 4, 8}
    best = allocate(isodepth_fit, flops=FLOPS).recommended.trainable
    assert min(costs[:, 2]) == pytest.approx(best.loss.mean(), abs=1e-6)
    small = pareto(isodepth_fit, flops=FLOPS, constraints=Constraints(memory=1e8))
    assert max(run.n_unique for run in small) <= 5e7


def test_growth_is_the_slope_between_budgets(isodepth_fit):
    budgets = [1e18, 1e20]
    made = [allocate(isodepth_fit, flops=flops, recurrences=[1, 4]) for flops in budgets]
    for row, place in zip(growth(made), (0, 1), strict=True):
        ends = [np.log(each.options[place].optimum.n_unique) for each in made]
        assert row["n_unique"]["mean"] == pytest.approx(((ends[1] - ends[0]) / np.log(100)).mean())
        assert 0.4 < row["tokens"]["mean"] < 0.7


def test_a_target_is_the_inverse_of_an_allocation(isodepth_fit):
    made = allocate(isodepth_fit, flops=3e19)
    found = target(isodepth_fit, loss=float(made.recommended.trainable.loss.mean()))
    assert found.recommended is not None
    assert found.recommended.flops == pytest.approx(3e19, rel=0.02)
    assert found.probability_reachable == 1
    for route, option in zip(found.routes, made.options, strict=True):
        # Draw by draw: at its own least compute each draw's optimum has the loss asked for.
        flops = float(np.median(route.flops))
        again = allocate(isodepth_fit, flops=flops, recurrences=[option.recurrences]).options[0].optimum.loss
        at = np.abs(route.flops / flops - 1).argmin()
        assert again[at] == pytest.approx(found.loss, abs=2e-4)
    sure = target(isodepth_fit, loss=found.loss, probability=0.95)
    assert sure.recommended is not None
    assert sure.recommended.flops > found.recommended.flops
    assert (sure.recommended.recommended.trainable.loss <= found.loss).mean() == pytest.approx(0.95, abs=0.01)


def test_a_target_below_the_floor_is_said_not_forced(isodepth_fit):
    found = target(isodepth_fit, loss=0.8)
    assert found.recommended is None
    assert found.probability_reachable == 0
    assert "No budget" in str(found)
    assert found.as_dict()["routes"][0]["flops"] is None
    assert any("below the law's E" in note for note in found.notes)


def test_a_target_with_inference_costs_more(isodepth_fit):
    plain, generating = (
        target(isodepth_fit, loss=2.3, constraints=Constraints(lifetime_tokens=tokens)).recommended
        for tokens in (0, 1e10)
    )
    assert plain is not None
    assert generating is not None
    assert generating.flops > 1.1 * plain.flops


def test_a_target_out_of_reach_says_what_comes_nearest(isodepth_fit):
    found = target(isodepth_fit, loss=2.3, constraints=Constraints(memory=5e7))
    assert found.recommended is None
    assert "within these constraints" in str(found)
    assert f"{found.farthest_loss:.4f}" in str(found)
    assert found.farthest_loss > 2.3


def test_a_target_out_of_reach_of_the_data(isodepth_fit):
    free = target(isodepth_fit, loss=2.3)
    bound = target(isodepth_fit, loss=2.3, constraints=Constraints(data_tokens=3e8))
    assert free.recommended is not None
    assert bound.probability_reachable < 1 or bound.recommended.flops > free.recommended.flops


@pytest.mark.parametrize("call", [{"loss": -1}, {"loss": float("nan")}, {"loss": 2.3, "probability": 0.1}])
def test_targets_that_cannot_be_meant(isodepth_fit, call):
    with pytest.raises(UsageError):
        target(isodepth_fit, **call)


def test_6nd_says_how_far_it_is_off(isodepth_fit, plain_fit):
    made = allocate(isodepth_fit, flops=FLOPS, flops_rule="6nd", recurrences=[1])
    run = made.recommended.trainable
    family = family_of(isodepth_fit)
    wide = min(range(128, 8192, 128), key=lambda width: abs(family.architecture(width, 1).n_unique - run.n_unique))
    exact = family.architecture(wide, 1).flops_per_token / (6 * family.architecture(wide, 1).n_unique)
    (note,) = (note for note in made.notes if "times the budget" in note)
    assert float(note.split(" times the budget")[0].split()[-1]) == pytest.approx(exact, abs=0.03)
    plain = allocate(plain_fit, flops=1e21, flops_rule="6nd")
    assert any("leaves out attention and head" in note for note in plain.notes)
    assert any("too few minima" in note for note in plain.notes)
