"""Simulation-based calibration: is a model's posterior right on data from the model itself, on a design at hand.

For simulation i, parameters are drawn from the prior, losses of all runs of the design from the model at these
parameters, and the posterior is sampled as for any fit. The truth's rank among the posterior's draws is then uniform,
and its central intervals hold the truth as often as they say: `bayeslaw.calibration.coverage` has the definitions.
Nothing is left out: the prior's strangest data count, and a simulation that cannot be sampled is recorded as such.

Talts, Betancourt, Simpson, Vehtari and Gelman (2018), arXiv 1804.06788.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.calibration.coverage import BAND, RANKED, Calibrated, judged, place
from bayeslaw.errors import FitError
from bayeslaw.family import ISODEPTH
from bayeslaw.frontier import optimum
from bayeslaw.inputs import Inputs, inputs_of
from bayeslaw.likelihood import named, predictive, sample_prior
from bayeslaw.priors import DEFAULT, Priors
from bayeslaw.runs import RunTable
from bayeslaw.sizes import Sizes, sizes_of
from bayeslaw.spec import Spec
from bayeslaw.structure import Structure, free_parameters, structure_of
from bayeslaw.version import __version__

Array = NDArray[np.float64]

RECURRENCES = 4.0
"""The r of g(r) and of the decisions, where the design has it."""

LOSS_BUDGET, SIZE_BUDGET = 1e20, 1e19
"""Training FLOPs of L* and of N*."""

FIRST = ("phi", "a", "b", "E", "k")
"""What leads the answer, where the model has it; g, L* and N* follow."""

ENOUGH = 200
"""From so many simulations on a posterior that passes is called calibrated: fewer leave room for much that is wrong."""

MOST_R_HAT = 1.05
"""Of the few draws that a simulation takes; with those that a fit takes it has to be lower."""

_SYMBOLS = {"alpha": "a", "beta": "b"}
"""The vector holds k alpha and k beta, the exponents of single terms."""

SAMPLER: Mapping[str, Any] = {"draws": 700, "tune": 300, "chains": 2, "target_accept": 0.98}
"""Of each simulation: enough for `RANKED` about independent draws, by steps small enough for odd data."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """A model and a design whose posterior is to be tried.

    Parameters
    ----------
    inputs : Inputs
        The design. Its losses do not matter, but for the relative error of those that have a ``loss_se``.
    structure : Structure
    spec : Spec
        Its ``draws``, ``tune`` and ``chains`` are those of every fit; its ``seed`` and the number of a simulation
        decide all draws. Without drift: that is no part of the model of the runs, but comes on top of forecasts.
    priors : Priors
    design : str
        Hash of the run table.
    """

    inputs: Inputs
    structure: Structure
    spec: Spec
    priors: Priors
    design: str

    @classmethod
    def of(cls, table: RunTable, spec: Spec, *, priors: Priors = DEFAULT) -> Calibration:
        """The model that a spec means for a run table.

        Raises
        ------
        FitError
            The table has not what the spec asks for, or fewer runs than free parameters.
        """
        spec = replace(spec, drift=False)
        inputs = inputs_of(table.runs, injection_in=spec.counted_in)
        structure = structure_of(inputs, spec, priors)
        free, rows = free_parameters(structure.blocks), len(inputs.run.levels)
        if rows < free:
            raise FitError(
                f"a design of {rows} runs for {free} free parameters",
                allowed=f"{free} runs or more",
                do="name a larger design, or a plainer --law",
            )
        return cls(inputs=inputs, structure=structure, spec=spec, priors=priors, design=table.data_hash)

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides a simulation, as JSON holds it."""
        settings = {
            "design": self.design, "runs": len(self.inputs.loss), "spec": asdict(self.spec),
            "priors": self.priors.as_dict(), "ranked": RANKED, "version": __version__,
        }  # fmt: skip
        plain: dict[str, Any] = json.loads(json.dumps(settings))
        return plain

    @property
    def key(self) -> str:
        """Sixteen hex digits that tell other settings apart."""
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def recurrences(self) -> float:
        """The r of g and of the decisions."""
        looped = [r for r in self.inputs.looped if r in ISODEPTH.allowed_recurrences]
        return RECURRENCES if RECURRENCES in looped else max(looped, default=1.0)

    @cached_property
    def _sizes(self) -> Sizes:
        trained = np.unique(self.inputs.recurrences)
        return sizes_of(ISODEPTH, self.recurrences, injection_in=self.spec.counted_in, trained=trained.tolist())

    def quantities(self, theta: Array) -> dict[str, Array]:
        """Every quantity that is tried, each of shape (sample,), by name.

        The parameters as they are sampled (positive ones by their logarithm, which has the same ranks): a and b are the
        exponents of single terms, k alpha and k beta. Then g(r); L*, the least loss of a budget, in nats per token; and
        N*, the unique parameters that reach it: of the law alone, in the published iso-depth family, for the first
        recipe.

        Parameters
        ----------
        theta : ndarray, shape (sample, p)
        """
        structure = self.structure
        sampled: dict[str, Array] = {}
        for block in structure.blocks:
            name = _SYMBOLS.get(block.name, block.name)
            for at, level in enumerate(block.levels):
                sampled[f"{name}[{level}]" if len(block.levels) > 1 else name] = theta[:, block.start + at]
        for name, at in (*structure.hyper.items(), *structure.scales.items()):
            sampled[name] = theta[:, at]
        decided = {} if self.spec.law == "chinchilla" else self._decided(theta)
        first = {name: sampled[name] for name in FIRST if name in sampled}
        return {**first, **decided, **sampled}

    def _decided(self, theta: Array) -> dict[str, Array]:
        """What the law says of the first recipe: g(r), L* and N*."""
        law, r = self.structure.law, self.recurrences
        parameters = named(theta[None], self.structure, self.inputs)
        draws = {}
        for name in law.parameters:
            value = parameters[name]
            draws[name] = value.isel({dim: 0 for dim in value.dims if dim not in ("chain", "draw")}).values.reshape(-1)
        out = {}
        if r > 1 and law.map.parameters:
            out[f"g({r:g})"] = np.asarray(law.map.worth(r, law.map_values(draws)))
        least = optimum(law, draws, self._sizes, flops=LOSS_BUDGET, recurrences=r)
        best = optimum(law, draws, self._sizes, flops=SIZE_BUDGET, recurrences=r)
        return {**out, f"L*({_power(LOSS_BUDGET)})": least.loss, f"N*({_power(SIZE_BUDGET)})": best.n_unique}

    def simulate(self, number: int) -> dict[str, Any]:
        """One simulation: truth, rank and position of every quantity, and how the sampler fared; JSON can hold it.

        Parameters
        ----------
        number : int
            Which: with the spec's seed it decides all draws.
        """
        started = time.perf_counter()
        record: dict[str, Any] = {"simulation": number, "settings": self.key}
        try:
            record |= self._simulated(np.random.default_rng([self.spec.seed, number]))
        except (ArithmeticError, ValueError, RuntimeError) as error:
            record["failed"] = f"{type(error).__name__}: {error}"
        return {**record, "seconds": round(time.perf_counter() - started, 2)}

    def _simulated(self, rng: np.random.Generator) -> dict[str, Any]:
        from arviz_stats import ess, rhat

        from bayeslaw import sampling

        truth = sample_prior(self.structure, self.priors, 1, rng)
        drawn = predictive(named(truth[None], self.structure, self.inputs), self.structure, self.inputs, rng)
        loss = np.exp(drawn["log_loss"].values[0, 0])
        if not (np.isfinite(loss) & (loss > 0)).all():
            raise FloatingPointError("losses beyond what numbers hold")
        inputs = replace(self.inputs, loss=loss, loss_se=self.inputs.loss_se / self.inputs.loss * loss)
        told: list[str] = []
        sampled = sampling.sample(
            self.structure, inputs, self.priors, replace(self.spec, seed=int(rng.integers(2**31))),
            progress=told.append, timed=lambda stage: None,
            demand=sampling.Demand(ess=RANKED, r_hat=MOST_R_HAT, thin=1),
        )  # fmt: skip
        posterior = sampled["posterior"].to_dataset()
        theta = posterior["theta"].values.reshape(-1, self.structure.size)
        found = self.quantities(np.concatenate([truth, theta]))
        if not all(np.isfinite(values).all() for values in found.values()):
            raise FloatingPointError("quantities beyond what numbers hold")
        return {
            "divergences": int(sampled["sample_stats"]["diverging"].sum()),
            "r_hat": round(float(rhat(posterior)["theta"].max()), 4),
            "ess": round(min(float(ess(posterior, method=m)["theta"].min()) for m in ("bulk", "tail"))),
            "again": any("sampling again" in message for message in told),
            "quantities": {
                name: [float(values[0]), *place(values[1:], float(values[0]), rng)] for name, values in found.items()
            },
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """What the simulations of a calibration say.

    Parameters
    ----------
    settings : mapping
        As `Calibration.settings`.
    quantities : mapping of str to Calibrated
        What the law says first, then the other parameters.
    simulations : int
    failed : tuple of (int, str)
        Simulations that could not be sampled, and why.
    again : int
        Simulations sampled a second time with smaller steps.
    divergences : int
        Divergent transitions in what was kept.
    short : int
        Simulations whose sample stayed below `RANKED` effective draws of some parameter, or above `MOST_R_HAT`.
    seconds : float
        Of all simulations together.
    """

    settings: Mapping[str, Any]
    quantities: Mapping[str, Calibrated]
    simulations: int
    failed: tuple[tuple[int, str], ...]
    again: int
    divergences: int
    short: int
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every quantity passes every check."""
        return all(quantity.passed for quantity in self.quantities.values())

    @property
    def sentences(self) -> tuple[str, ...]:
        """What it says, in words: the verdict, then how the sampler fared."""
        off = [
            f"{name} ({', '.join(quantity.faults)})" for name, quantity in self.quantities.items() if quantity.faults
        ]
        total = len(self.quantities)
        if off:
            verdict = f"Not calibrated in {self.simulations} simulations: {'; '.join(off)}."
            if self.cautious:
                verdict += f" Wider than needed (cautious): the intervals of {', '.join(self.cautious)}."
        elif self.enough:
            verdict = (
                f"All {total} quantities are calibrated, as far as {self.simulations} simulations tell: {self.limit}."
            )
        else:
            verdict = f"None of {total} quantities was shown to be off, which is no proof: {self.limit}."
        sampler = (
            f"Sampled again with smaller steps: {self.again}; divergences left: {self.divergences}; short of "
            f"{RANKED} effective draws: {self.short}; not sampled at all: {len(self.failed)}."
        )
        return (verdict, sampler, *self.meanings)

    @property
    def enough(self) -> bool:
        """Whether the simulations are enough to call what passes calibrated."""
        return self.simulations >= ENOUGH

    @property
    def limit(self) -> str:
        """What the simulations would show of a 90 % interval, and nothing less."""
        low = next(iter(self.quantities.values())).coverage[-1].low
        return (
            f"{self.simulations} simulations show a 90 % interval to be too narrow only if it holds the truth in less "
            f"than {100 * low:.0f} % of them"
        )

    @property
    def cautious(self) -> tuple[str, ...]:
        """The quantities with intervals that hold the truth more often than they say."""
        return tuple(name for name, each in self.quantities.items() if any(part.cautious for part in each.coverage))

    @property
    def meanings(self) -> tuple[str, ...]:
        """What names stand for, and which quantities are one and the same in other units."""
        out = []
        if {name.split("[")[0] for name in self.quantities} & {"a", "b"}:
            symbols = "k alpha and k beta" if self.settings["spec"]["law"] == "coupled" else "alpha and beta"
            out.append(f"a and b are the exponents of single terms, of size and of data: {symbols}.")
        for name, each in self.quantities.items():
            same = [
                other for other, one in self.quantities.items()
                if other != name and np.array_equal(one.ranks, each.ranks)
            ] if name.startswith("g(") else []  # fmt: skip
            if same:
                out.append(f"{name} is {same[0]} in other units here, and no check of its own.")
        return tuple(out)

    def as_dict(self) -> dict[str, Any]:
        """The answer of ``calibrate --json``."""
        return {
            "simulations": self.simulations,
            "passed": self.passed,
            "quantities": {name: quantity.as_dict() for name, quantity in self.quantities.items()},
            "band": BAND,
            "sentences": list(self.sentences),
            "failed": [{"simulation": number, "reason": reason} for number, reason in self.failed],
            "sampled_again": self.again,
            "divergences": self.divergences,
            "short_of_draws": self.short,
            "seconds": self.seconds,
            "settings": self.settings,
        }


def summed(settings: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Result:
    """Judge simulations.

    Parameters
    ----------
    settings : mapping
        As `Calibration.settings`.
    records : sequence of mapping
        As `Calibration.simulate` makes them.

    Raises
    ------
    FitError
        None of them could be sampled.
    """
    done = [record for record in records if "failed" not in record]
    failed = tuple((record["simulation"], record["failed"]) for record in records if "failed" in record)
    if not done:
        raise FitError(
            f"none of {len(records)} simulations could be sampled: {failed[0][1]}" if failed else "no simulations",
            do="try another law, or a design of more runs",
        )
    quantities = {}
    for name in done[0]["quantities"]:
        _, ranks, positions = zip(*(record["quantities"][name] for record in done), strict=True)
        quantities[name] = judged(name, ranks, positions, failed=len(failed))
    return Result(
        settings=settings,
        quantities=quantities,
        simulations=len(records),
        failed=failed,
        again=sum(record["again"] for record in done),
        divergences=sum(record["divergences"] for record in done),
        short=sum(record["ess"] < RANKED or record["r_hat"] >= MOST_R_HAT for record in done),
        seconds=round(sum(record["seconds"] for record in records), 1),
    )


def _power(flops: float) -> str:
    """A power of ten as it is written: 1e20."""
    return f"{flops:.0e}".replace("+", "")
