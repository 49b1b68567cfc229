"""Regimes: the table, the model, effects, verdicts, and planted regimes found again."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal

from bayeslaw import datasets
from bayeslaw.downstream.axis import axis_data, contrasts
from bayeslaw.downstream.effects import compute_draws, matched_loss
from bayeslaw.downstream.evidence import log_evidence
from bayeslaw.downstream.model import Posterior, growth, sample
from bayeslaw.downstream.priors import DEFAULT
from bayeslaw.downstream.regimes import regimes
from bayeslaw.downstream.seeds import MOST, more_seeds
from bayeslaw.downstream.simulate import planted, simulated
from bayeslaw.downstream.table import load_evaluations
from bayeslaw.downstream.verdicts import (
    BEHIND,
    CLOSES,
    NO_SIGNAL,
    TRACKS,
    UNDECIDED,
    power,
    resolvable,
    verdict_of,
)  # fmt: skip
from bayeslaw.errors import NoRunsError, RunTableError, UsageError
from bayeslaw.evaluations import Evaluation, results_of, write_evaluation

TASKS = 5
"""Slopes of the compiled model in all of these tests, so that it is compiled once."""

AXIS_MEANS = {
    "knowledge": (3.1627, 3.2517, 3.2790, 3.4403),
    "reading": (1.3396, 1.3328, 1.3072, 1.3938),
    "math": (1.5943, 1.6057, 1.6167, 1.5423),
    "primitives": (1.1074, 1.0312, 1.1884, 1.2156),
    "compositional": (2.1858, 2.0935, 2.1835, 2.1140),
}
"""Means over the tasks at r = 1, 2, 4, 8 and 2.15e19 FLOPs, from the paper's own table by hand."""


def grid(*, budgets=6, tasks=TASKS, error=0.01, seeds=1):
    """Rows of one axis: budgets x r = 1, 2, 4, 8, without losses that mean anything."""
    made = [
        {
            "run_id": f"{r}/{budget}/{seed}", "checkpoint": f"{r}/{budget}/{seed}", "recipe": "baseline",
            "recurrences": float(r), "architecture": f"r = {r}", "budget": 1e18 * 2**budget, "flops": 1e18 * 2**budget,
            "loss": 3 - 0.1 * budget + 0.02 * np.log2(r), "axis": "reading", "task": f"task {task}", "task_loss": 0.0,
            "task_loss_se": error,
        }
        for budget in range(budgets) for r in (1, 2, 4, 8) for seed in range(seeds) for task in range(tasks)
    ]  # fmt: skip
    return pd.DataFrame(made)


def fitted(rows, seed=0):
    data = axis_data(rows, DEFAULT)
    return data, sample(data, DEFAULT, tasks=TASKS, draws=400, tune=400, chains=2, seed=seed)


@pytest.fixture(scope="module")
def truth():
    """An axis that closes the gap by .1 nats, with little noise."""
    drawn = planted("closes", tasks=TASKS, effect=-0.1, rng=np.random.default_rng(1))
    return replace(drawn, omega=0.005, sigma=0.01, rho=0.01, curvature=0.5)


@pytest.fixture(scope="module")
def found(truth):
    return fitted(simulated(grid(), truth, rng=np.random.default_rng(2)))


def test_shipped_numbers_are_the_papers():
    table = datasets.load_evaluation_set("isodepth-downstream")
    assert len(table) == 90
    tasks = table[table["task"] != "mean"]
    means = tasks.groupby(["axis", "recurrences"])["task_loss"].mean()
    for axis, expected in AXIS_MEANS.items():
        assert [means[axis, r] for r in (1, 2, 4, 8)] == pytest.approx(expected, abs=6e-5)
    assert tasks.groupby("axis")["task"].nunique().to_dict() == {
        "knowledge": 3, "reading": 5, "math": 3, "primitives": 5, "compositional": 4,
    }  # fmt: skip
    assert tasks.drop_duplicates("task").set_index("task").loc["drop", ["examples", "shots"]].tolist() == [9535, 3]
    pair = table[table["task"] == "mean"].set_index(["axis", "recurrences"])
    assert pair.loc[("knowledge", 4), "task_loss"] == 2.693
    assert pair.loc[("compositional", 1), "task_loss"] == 1.546
    assert pair.groupby("recurrences")["loss"].first().to_dict() == {1: 2.047, 4: 2.108}


def test_shipped_validation_losses_are_the_lowest_measured():
    table = datasets.load_evaluation_set("isodepth-downstream")
    runs = datasets.load_dataset("isodepth")
    lowest = runs[runs["budget"] == 2.15e19].groupby("recurrences")["loss"].min()
    own = table[table["budget"] == 2.15e19].groupby("recurrences")["loss"].unique()
    for r, loss in lowest.items():
        assert own[r].tolist() == [loss]
    assert lowest.round(3).tolist() == [2.309, 2.340, 2.360, 2.400]
    assert table["flops"].max() > 2**63  # 4e20: no whole number of 64 bits
    with pytest.raises(KeyError):
        datasets.load_evaluation_set("isodepth")


def test_curve_is_monotone_and_stable():
    x = np.linspace(-1, 1, 201)
    for kappa in (-8.0, -1.0, -1e-9, 0.0, 1e-12, 1e-6, 1.0, 8.0):
        assert (np.diff(growth(x, kappa, xp=np)) > 0).all()
    np.testing.assert_allclose(growth(x, 1e-7, xp=np), x, rtol=1e-6)
    np.testing.assert_allclose(growth(x, 2.0, xp=np), np.expm1(2 * x) / 2)


def test_evidence_and_its_gradient():
    rng = np.random.default_rng(0)
    values = [rng.normal(size=9), rng.uniform(0.1, 1, 9), rng.normal(size=(9, 14)), rng.uniform(0.1, 1, 14)]

    def reference(residual, noise, design, scale):
        covariance = np.diag(noise) + (design * scale) @ (design * scale).T
        return multivariate_normal.logpdf(residual, np.zeros(9), covariance)

    value, *gradients = log_evidence(*values)
    assert value == pytest.approx(reference(*values))
    for at, gradient in zip((0, 1, 3), gradients, strict=True):
        for i in range(len(gradient)):
            step = np.eye(len(gradient))[i] * 1e-6
            up, down = ([*values[:at], values[at] + sign * step, *values[at + 1 :]] for sign in (1, -1))
            assert gradient[i] == pytest.approx((reference(*up) - reference(*down)) / 2e-6, rel=1e-4, abs=1e-6)


def test_deviations_of_tasks_sum_to_zero():
    basis = contrasts(4)
    np.testing.assert_allclose(basis.sum(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(basis @ basis.T, np.eye(4) - 0.25, atol=1e-12)
    assert contrasts(1).shape == (1, 0)


def test_mean_of_an_axis_is_the_mean_of_its_tasks():
    rows = grid(budgets=1)
    rows["task_loss"] = np.arange(len(rows), dtype=float)
    mean = rows[rows["recurrences"] == 4].groupby("checkpoint", as_index=False).first()
    data = axis_data(pd.concat([rows, mean.assign(task="mean", checkpoint="pair", run_id="pair")]), DEFAULT)
    own = data.checkpoint == 2  # r = 4
    np.testing.assert_allclose(data.weights[-1], 1 / TASKS)
    assert data.share[-1] == 1 / TASKS
    effects = slice(TASKS, data.design.shape[1] - len(data.checkpoints))
    np.testing.assert_allclose(data.design[-1, effects], data.design[own][:, effects].mean(axis=0), atol=1e-12)


def test_verdicts_by_definition():
    rng = np.random.default_rng(0)

    def verdict(draws, delta=0.02):
        return verdict_of(draws, delta=delta, axis="math", architecture="r = 2", pooled=False)

    near = rng.normal(size=4000)
    assert verdict(0.003 * near).verdict == TRACKS
    assert verdict(-0.1 + 0.01 * near).verdict == CLOSES
    assert verdict(0.1 + 0.01 * near).verdict == BEHIND
    assert verdict(0.05 * near).verdict == NO_SIGNAL
    assert verdict(-0.02 + 0.004 * near).verdict == UNDECIDED
    one = verdict(np.array([-0.03, -0.01, 0.0, 0.03]))
    assert (one.p_closes, one.p_tracks, one.p_behind) == (0.25, 0.5, 0.25)
    assert resolvable(0.01) == pytest.approx(0.02487)
    assert power(resolvable(0.01), 0.01) == pytest.approx(0.8, abs=1e-3)
    # An effect of the smallest size that can be told is told in 80 % of repetitions.
    means = rng.normal(resolvable(0.01), 0.01, 20_000)
    assert (means - 1.645 * 0.01 > 0).mean() == pytest.approx(0.8, abs=0.01)


def test_planted_effect_is_found(found, truth):
    data, posterior = found
    effects = matched_loss(data, posterior)
    assert list(effects) == ["looped", "r = 2", "r = 4", "r = 8"]
    pooled, draws = effects["looped"]
    assert pooled
    assert abs(draws.mean() + 0.1) < 3 * draws.std()
    assert draws.std() < 0.02
    verdict = verdict_of(draws, delta=0.02, axis="reading", architecture="looped", pooled=True)
    assert verdict.verdict == CLOSES
    np.testing.assert_allclose(draws, np.mean([effects[f"r = {r}"][1] for r in (2, 4, 8)], axis=0))
    assert posterior.slopes.min() > 0
    relative = posterior.slopes.mean() / truth.slopes.mean()
    assert 0.8 < relative < 1.25
    assert posterior.diagnostics.divergences == 0


def test_matched_compute_adds_the_curve(found, truth):
    data, posterior = found
    by_budget = compute_draws(data, posterior)["r = 8"]
    assert len(by_budget) == 6
    loss = data.checkpoints.set_index(["architecture", "budget"])["loss"]
    for budget, draws in by_budget.items():
        two = np.array([loss["r = 8", budget], loss["r = 1", budget]]) - data.centre
        true = -np.diff(truth.rise(two))[0] - 0.1
        assert abs(draws.mean() - true) < 4 * draws.std()
        assert draws.mean() > matched_loss(data, posterior)["r = 8"][1].mean()  # its validation loss is higher


def test_more_seeds(found):
    data, posterior = found
    weights = np.full(3, 1 / 3)
    easy, some, never = (
        more_seeds(data, posterior, DEFAULT, weights=weights, effect=effect) for effect in (0.5, 0.0075, 1e-6)
    )
    assert easy.copies == 1
    assert easy.runs == easy.flops == 0
    assert never.copies is never.runs is never.flops is None
    assert "no number of new seeds" in never.sentence
    assert str(MOST) in never.sentence
    for one in (easy, some, never):
        assert one.examples <= one.floor < one.resolvable
    assert some.copies > 1
    assert some.flops == pytest.approx((some.copies - 1) * data.checkpoints["flops"].sum())
    # Without the examples' errors less is needed, and the floor is lower.
    exact = more_seeds(replace(data, known=0 * data.known), posterior, DEFAULT, weights=weights, effect=0.0075)
    assert exact.floor < some.floor


def test_what_is_known_of_examples_counts():
    truth = replace(planted("closes", tasks=TASKS, effect=-0.1, rng=np.random.default_rng(3)), omega=0.002, sigma=0.005)
    spread = [
        matched_loss(*fitted(simulated(grid(budgets=2, error=error), truth, rng=np.random.default_rng(4))))["looped"][
            1
        ].std()
        for error in (0.005, 0.1)
    ]
    assert spread[1] > 2 * spread[0]


def test_shipped_regimes():
    result = regimes(load_evaluations("isodepth-downstream"), axes=["reading", "knowledge"], tune=600)
    assert result.passed, result.messages
    assert [one.axis for one in result.axes] == ["knowledge", "reading"]
    knowledge, reading = result.axes
    for one in result.axes:
        assert [v.architecture for v in one.verdicts] == ["looped", "r = 2", "r = 4", "r = 8"]
        for v in one.verdicts:
            assert v.p_tracks + v.p_closes + v.p_behind == pytest.approx(1)
    compute = {(c.architecture, c.budget): c.effect for c in knowledge.compute}
    assert {budget for _, budget in compute} == {None, 2.15e19, 4e20}
    assert compute["r = 8", None].q05 > 0  # knowledge loses with r for the same compute
    assert compute["r = 8", None].mean > compute["r = 2", None].mean > 0
    assert knowledge.main[0].p_closes < 0.5 < reading.main[0].p_closes
    assert any("standard errors" in text for text in result.notes)
    assert any("seeds" in text for text in result.notes)
    assert json.loads(json.dumps(result.as_dict()))["axes"][0]["more_seeds"]["effect"] == 0.02
    assert len(result.sentences) == 2
    assert len(reading.curve.points) == 6


@pytest.mark.slow
def test_all_axes_that_ship_converge():
    result = regimes(load_evaluations("isodepth-downstream"))
    assert result.passed, result.messages
    verdicts = {one.axis: one.main[0] for one in result.axes}
    assert list(verdicts) == list(AXIS_MEANS)
    assert verdicts["primitives"].verdict == NO_SIGNAL
    assert verdicts["primitives"].resolvable > verdicts["knowledge"].resolvable


def written(tmp_path, table, name="table.csv"):
    path = tmp_path / name
    table.to_csv(path, index=False)
    return path


@pytest.fixture
def table():
    return grid(budgets=2).drop(columns=["checkpoint", "architecture"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns=["task_loss", "axis"]), "no column axis, task_loss"),
        (lambda t: t.assign(axis="readin"), "did you mean reading"),
        (lambda t: t.assign(task_loss=-0.1), "0 or more"),
        (lambda t: t.assign(loss=0), "above 0"),
        (lambda t: t.assign(task_loss="a lot"), "not a number"),
        (lambda t: t.assign(task_loss_se=-1), "0 or more"),
        (lambda t: t.assign(accuracy=1.5), "a share, 0 to 1"),
        (lambda t: t.assign(recurrences=0.5), "1 or more"),
        (lambda t: pd.concat([t, t.head(1)]), "comes twice"),
        (lambda t: t.assign(loss=np.arange(len(t)) + 1.0), "other rows of the checkpoint"),
        (lambda t: t.assign(axis=["math", *t["axis"][1:]]), "in another one before"),
        (lambda t: t.assign(data_digest=[f"d{i % 2}" for i in t["recurrences"]]), "different examples"),
        (lambda t: t.assign(shots=t["recurrences"]), "different shots"),
        (lambda t: t.assign(task_loss=[np.nan, *t["task_loss"][1:]]), "is missing"),
    ],
)
def test_wrong_tables(tmp_path, table, change, message):
    with pytest.raises(RunTableError, match=message) as error:
        load_evaluations(written(tmp_path, change(table)))
    assert "next:" in str(error.value) or "in another one before" in message


def test_wrong_sources(tmp_path, table):
    with pytest.raises(UsageError, match="did you mean isodepth-downstream"):
        load_evaluations("isodepth-downstreams")
    with pytest.raises(UsageError, match="there is no file"):
        load_evaluations(tmp_path / "none.csv")
    with pytest.raises(UsageError, match="names no experiment"):
        load_evaluations("mlflow:")
    with pytest.raises(NoRunsError, match="holds no evaluation"):
        load_evaluations(tmp_path)
    path = written(tmp_path, table)
    with pytest.raises(NoRunsError, match="no evaluation of"):
        load_evaluations(path, where="recurrences > 100")
    with pytest.raises(UsageError, match="is no column"):
        load_evaluations(path, where="recurrence > 1")


def test_what_cannot_be_analysed(tmp_path, table):
    path = written(tmp_path, table)
    with pytest.raises(UsageError, match="no checkpoint of r = 1"):
        regimes(load_evaluations(path, where="recurrences > 1"))
    with pytest.raises(UsageError, match="all checkpoints have r = 1"):
        regimes(load_evaluations(path, where="recurrences == 1"))
    whole = load_evaluations(path)
    for axes, message in ((["maths"], "is no axis"), (["math"], "is not in")):
        with pytest.raises(UsageError, match=message):
            regimes(whole, axes=axes)
    with pytest.raises(UsageError, match="above 0"):
        regimes(whole, delta=0)
    with pytest.raises(NoRunsError):
        regimes(load_evaluations(written(tmp_path, table.assign(axis="validation"))))


def test_architectures_and_other_r(tmp_path, table):
    both = pd.concat(
        [table, table[table["recurrences"] == 4].assign(recipe="truncated_bptt", run_id=lambda t: "t" + t["run_id"])]
    )
    names = load_evaluations(written(tmp_path, both)).rows["architecture"]
    assert set(names) == {"r = 1", *(f"baseline, r = {r}" for r in (2, 4, 8)), "truncated_bptt, r = 4"}
    deeper = pd.concat([table, table[table["recurrences"] == 4].assign(test_recurrences=8)])
    read = load_evaluations(written(tmp_path, deeper))
    assert len(read.rows) == len(table)
    assert set(read.others["test_recurrences"]) == {8}
    assert any("another r" in text for text in read.notes)
    again = load_evaluations(written(tmp_path, deeper.sample(frac=1, random_state=0)))
    assert again.data_hash == read.data_hash != load_evaluations(written(tmp_path, table)).data_hash


def evaluation(run, recurrences, task, loss):
    return Evaluation(
        key="0" * 16, time=1.0,
        row={"run_id": run, "recipe": "baseline", "recurrences": recurrences, "budget": 1e12, "loss": loss},
        checkpoint={"step": 10, "digest": "c"},
        task={"name": task, "axis": "primitives", "shots": 0, "digest": "d", "source": "made here", "settings": {}},
        recurrences=recurrences, tokenizer={"name": "bytes", "digest": "b"}, precision="float32", versions={},
        results=results_of([1.0, 2.0, 3.0], [2, 2, 2], [True, False, True], left_out={}, shortened=0),
        per_example={"nats": [1.0, 2.0, 3.0], "tokens": [2, 2, 2], "correct": [1, 0, 1]},
    )  # fmt: skip


def test_run_directories(tmp_path):
    for r in (1, 2):
        for task in ("induction", "words"):
            write_evaluation(tmp_path / "runs" / f"run-{r}", evaluation(f"run-{r}", r, task, 2.0 + r / 10))
    read = load_evaluations(tmp_path)
    assert len(read.rows) == 4
    assert set(read.rows["checkpoint"]) == {"run-1@10", "run-2@10"}
    assert read.rows["task_loss"].unique().tolist() == [1.0]
    assert (read.rows["task_loss_se"] > 0).all()
    assert len(load_evaluations(tmp_path / "runs" / "run-2").rows) == 2


@pytest.mark.slow
def test_mlflow(tmp_path):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("probes")
    for r in (1, 4):
        run = client.create_run(experiment).info.run_id
        params = {"recurrences": r, "n_once": 10_000, "n_shared": 20_000, "n_injection": 0, "recipe": "baseline"}
        for name, value in params.items():
            client.log_param(run, name, value)
        metrics = {"tokens": 1e6, "loss": 2.0 + r / 10, "eval/math/words/loss": 1.0 + r, "eval/math/words/loss_se": 0.1}
        if r == 4:
            metrics["eval/math/words/r8/loss"] = 7.0
        for name, value in metrics.items():
            client.log_metric(run, name, value)
        client.set_terminated(run)
    read = load_evaluations("mlflow:probes", tracking_uri=uri)
    assert read.rows.set_index("architecture")["task_loss"].to_dict() == {"r = 1": 2.0, "r = 4": 5.0}
    assert read.rows["task_loss_se"].tolist() == [0.1, 0.1]
    assert read.others[["test_recurrences", "task_loss"]].to_numpy().tolist() == [[8.0, 7.0]]


@pytest.mark.slow
def test_intervals_cover_planted_effects():
    rng = np.random.default_rng(7)
    rows = grid(budgets=2, error=np.nan)
    inside, false = [], []
    for seed in range(40):
        effect = float(rng.choice([0.0, -0.1]))
        truth = planted("closes", tasks=TASKS, effect=effect, rng=rng)
        data = axis_data(simulated(rows, truth, rng=rng), DEFAULT)
        posterior: Posterior = sample(
            data, DEFAULT, tasks=TASKS, draws=300, tune=300, chains=1, seed=seed, patient=False
        )  # fmt: skip
        for name, (pooled, draws) in matched_loss(data, posterior).items():
            low, high = np.quantile(draws, [0.05, 0.95])
            inside.append(low <= effect <= high)
            verdict = verdict_of(draws, delta=0.02, axis="reading", architecture=name, pooled=pooled).verdict
            if effect == 0:
                false.append(verdict in (CLOSES, BEHIND))
    assert 0.8 <= np.mean(inside) <= 1.0
    assert np.mean(false) <= 0.08
