"""What choosing runs by the posterior saves: the published grid, trained again in another order.

The 116 runs of isodepth, their real losses, under the coupled law with the power map, no deviation and Gaussian errors.
The 16 cheapest runs are there at no cost; a policy then names the next run from those that remain, by the posterior of
what it has seen alone, sees its loss, and the law is fitted again.

cheapest-first
    By budget, ties in random order. What it has reached after 40 further runs is the target.
design
    The run of the greatest gain per FLOP, as `bayeslaw design` names it to be trained next.
design, by fours
    Four at a time: each by its gain per FLOP given those before it.
to the goal
    The first run of the cheapest set that is expected to reach the target (its --until).
for the purse
    The first run of what it would buy with what is left of the purse that cheapest-first spends on 40 runs.
random
    In random order.

Cheapest-first and the random order are played with 20 seeds, the design with half as many, the others with three (of
the sampler, and of the order where that is random). A posterior is of 2,000 draws, whose sd is known to 2 %, so a
single look decides nothing: each replay goes on to `BEYOND` of the target, and the target is reached where a monotone
regression of the logarithm on FLOPs crosses it. The target itself is the mean over 20 seeds.

Which of the designs is the one to go by was decided on this very replay, so its figure is no blind test.

The other target is the expected regret at 2.15e19 FLOPs over trainable widths at all four r, by the same rule.

Run with `python benchmarks/replay.py`; tables are printed and written to benchmarks/results/replay.json and replay.md,
as they grow. `--seeds 20`, and `--parts phi,regret,detection,speed` for a part.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

OUT = Path(__file__).parent / "results" / "replay.json"
POWER = Path(__file__).parent / "results" / "power.json"

START, FURTHER = 16, 40
BEYOND = 0.93
MOST = 2.0
"""No replay spends more than so many times what cheapest-first spends."""
FLOPS = 2.15e19
WIDTHS = range(512, 3841, 128)


class Lab:
    """Posteriors of any part of the 116 runs."""

    def __init__(self) -> None:
        from bayeslaw import load_runs
        from bayeslaw.family import ISODEPTH
        from bayeslaw.holdout import Candidate
        from bayeslaw.spec import Spec

        spec = Spec.of(law="coupled", map="power", draws=1000, tune=500, chains=2)
        self.model = Candidate.of(load_runs("isodepth"), spec)
        self.flops = self.model.inputs.flops
        self.order = np.argsort(self.flops, kind="stable")
        self.actions = [
            (r, *ISODEPTH.split(width, r, injection_in="once", trained=()), ISODEPTH.architecture(width, r).tokens_for(
                FLOPS, batch_tokens=ISODEPTH.batch_tokens))
            for r in (1, 2, 4, 8) for width in WIDTHS
        ]  # fmt: skip

    def begin(self) -> Any:
        """The runs that are there at no cost."""
        seen = np.zeros(len(self.flops), dtype=bool)
        seen[self.order[:START]] = True
        return seen

    def posterior(self, seen: Any, seed: int, draws: int = 1000) -> State:
        from bayeslaw import sampling
        from bayeslaw.likelihood import named

        part = self.model.inputs.subset(seen)
        tree = sampling.sample(
            self.model.structure, part, self.model.priors, replace(self.model.spec, seed=seed, draws=draws),
            progress=lambda message: None, timed=lambda stage: None,
            demand=sampling.Demand(ess=300, r_hat=1.02, thin=2, divergences=5),
        )  # fmt: skip
        theta = tree["posterior"].to_dataset()["theta"].values
        return State(self, seen, named(theta, self.model.structure, part))


class State:
    """What is known after some of the runs."""

    def __init__(self, lab: Lab, seen: Any, parameters: Any) -> None:
        self.lab, self.seen, self.parameters = lab, seen, parameters
        self.left = np.flatnonzero(~seen)
        phi = parameters["phi"]
        self.phi = (phi.isel(recipe=0) if "recipe" in phi.dims else phi).values.ravel()

    def log_losses(self) -> Any:
        """Of the runs that remain, shape (sample, run)."""
        from bayeslaw.likelihood import predicted_log_loss

        found = predicted_log_loss(self.parameters, self.lab.model.structure, self.lab.model.inputs).values
        return found.reshape(-1, found.shape[-1])[:, self.left]

    def losses(self) -> Any:
        """Of the configurations to decide between, shape (sample, action)."""
        law = self.lab.model.structure.law
        draws = {
            name: (value.isel(recipe=0) if "recipe" in value.dims else value).values.reshape(-1, 1)
            for name, value in self.parameters[list(law.parameters)].items()
        }
        r, once, rec, tokens = (np.array(column, dtype=float) for column in zip(*self.lab.actions, strict=True))
        return law.loss(once, rec, r, tokens, draws)

    def measure(self, target: str) -> float:
        """Sd of phi, or expected regret."""
        if target == "phi":
            return float(self.phi.std())
        losses = self.losses()
        return float(losses.mean(axis=0).min() - losses.min(axis=1).mean())

    def belief(self, target: str) -> tuple[Any, Any]:
        """What `bayeslaw.design` makes of it, and what the remaining runs cost."""
        from bayeslaw.design.aims import regret_of
        from bayeslaw.design.belief import Belief

        parts = self.phi[:, None] if target == "phi" else regret_of("regret", self.losses()).parts
        noise = np.full(len(self.left), float((self.parameters["sigma"] ** 2).mean()))
        weight = np.full(parts.shape[1], 1 / parts.var(axis=0, ddof=1).sum())
        return Belief.of(parts, self.log_losses(), noise=noise, weight=weight), self.lab.flops[self.left]


Policy = Callable[[State, float, str, float, np.random.Generator], Sequence[int]]


def at_random(state: State, purse: float, target: str, goal: float, rng: np.random.Generator) -> list[int]:
    return rng.permutation(len(state.left)).tolist()


def design(state: State, purse: float, target: str, goal: float, rng: np.random.Generator) -> list[int]:
    from bayeslaw.design.search import next_runs

    belief, cost = state.belief(target)
    return next_runs(belief, cost, most=4) or [int(cost.argmin())]


def for_the_purse(state: State, purse: float, target: str, goal: float, rng: np.random.Generator) -> list[int]:
    from bayeslaw.design.search import within

    belief, cost = state.belief(target)
    return within(belief, cost, purse) or design(state, purse, target, goal, rng)


def to_the_goal(state: State, purse: float, target: str, goal: float, rng: np.random.Generator) -> list[int]:
    from bayeslaw.design.search import cheapest

    belief, cost = state.belief(target)
    share = goal / state.measure(target)
    runs = cheapest(belief, cost, share**2 if target == "phi" else share)
    return runs or design(state, purse, target, goal, rng)


POLICIES: dict[str, tuple[Policy, int, int]] = {
    "design": (design, 1, 2),
    "random": (at_random, 2, 1),
    "design, by fours": (design, 4, 6),
    "to the goal": (to_the_goal, 1, 6),
    "for the purse": (for_the_purse, 1, 6),
}
"""Policy, runs taken at a time, and what part of the seeds it is played with."""


def crossing(spent: Sequence[float], measured: Sequence[float], goal: float) -> float:
    """FLOPs at which a monotone regression of the logarithm comes down to the goal; inf where it does not."""
    blocks: list[list[float]] = []
    for flops, value in zip(spent, np.log(measured), strict=True):
        blocks.append([value, 1.0, flops])
        while len(blocks) > 1 and blocks[-2][0] <= blocks[-1][0]:
            last, before = blocks.pop(), blocks.pop()
            count = last[1] + before[1]
            level, place = ((last[i] * last[1] + before[i] * before[1]) / count for i in (0, 2))
            blocks.append([level, count, place])
    levels, _, places = np.array(blocks).T
    if levels[-1] > np.log(goal):
        return float("inf")
    return float(np.interp(-np.log(goal), -levels, places))


def play(lab: Lab, name: str, target: str, goal: float, purse: float, truth: float, seed: int) -> dict[str, Any]:
    """One replay: FLOPs and runs to the goal."""
    policy, at_once, _ = POLICIES[name]
    rng = np.random.default_rng(seed)
    seen, spent = lab.begin(), [0.0]
    measured, off = [], []
    while True:
        state = lab.posterior(seen, seed)
        measured.append(state.measure(target))
        off.append(abs(float(state.phi.mean()) - truth))
        if measured[-1] <= BEYOND * goal or len(state.left) < at_once or spent[-1] > MOST * purse:
            break
        # A design for more than the goal goes on for the rest of it.
        aimed = goal if measured[-1] > goal else BEYOND * goal
        named = policy(state, max(purse - spent[-1], 0.0), target, aimed, rng)
        chosen = state.left[list(named)[:at_once]]
        spent.append(spent[-1] + float(lab.flops[chosen].sum()))
        seen = seen.copy()
        seen[chosen] = True
    flops = crossing(spent, measured, goal)
    at = int(np.searchsorted(spent, flops))
    looks = zip(spent, measured, strict=True)
    first = next((there for there, value in looks if value <= goal), float("inf"))
    runs = float(np.interp(flops, spent, at_once * np.arange(len(spent))))
    return {
        "seed": seed, "flops": flops if np.isfinite(flops) else None,
        "first_look": first if np.isfinite(first) else None, "runs": runs,
        "phi_off": off[min(at, len(off) - 1)], "spent": spent, "measured": measured,
    }  # fmt: skip


def summary(rows: list[dict[str, Any]], purse: float) -> dict[str, Any]:
    """Of the replays of one policy; one that did not reach the goal counts as `MOST`, which is less than it needs."""
    share, first = (
        np.array([MOST if row[name] is None else row[name] / purse for row in rows]) for name in ("flops", "first_look")
    )
    return {
        "seeds": len(rows), "reached": sum(row["flops"] is not None for row in rows), "share": float(share.mean()),
        "share_least": float(share.min()), "share_most": float(share.max()), "first_look": float(first.mean()),
        "runs": float(np.mean([row["runs"] for row in rows])),
        "phi_off": float(np.mean([row["phi_off"] for row in rows])), "rows": rows,
    }  # fmt: skip


def replay(lab: Lab, target: str, seeds: int, tell: Callable[[dict[str, Any]], None]) -> None:
    """All policies up to what cheapest-first reaches."""
    everything = lab.posterior(np.ones(len(lab.flops), dtype=bool), 0, draws=4000)
    truth = float(everything.phi.mean())
    seen = lab.begin()
    seen[lab.order[: START + FURTHER]] = True  # whatever the order of ties: whole budgets
    last = lab.flops[lab.order[START + FURTHER - 1]]
    assert (np.delete(lab.flops, lab.order[: START + FURTHER]) > 1.5 * last).all()
    purse = float(lab.flops[lab.order[START : START + FURTHER]].sum())
    states = [lab.posterior(seen, seed) for seed in range(seeds)]
    goal = float(np.mean([state.measure(target) for state in states]))
    answer: dict[str, Any] = {
        "target": goal, "of_all_runs": everything.measure(target),
        "at_start": lab.posterior(lab.begin(), 0).measure(target), "phi_of_all_runs": truth,
        "cheapest-first": {
            "flops": purse, "runs": FURTHER,
            "phi_off": float(np.mean([abs(float(state.phi.mean()) - truth) for state in states])),
        },
        "policies": {},
    }  # fmt: skip
    for name, (_, _, part) in POLICIES.items():
        rows = []
        for seed in range(max(2, round(seeds / part))):
            rows.append(play(lab, name, target, goal, purse, truth, seed))
            print(target, name, {k: v for k, v in rows[-1].items() if not isinstance(v, list)}, flush=True)
        answer["policies"][name] = summary(rows, purse)
        tell(answer)


def detected() -> list[dict[str, Any]]:
    """The formula of `bayeslaw.design.detection` on the designs of benchmarks/power.py, beside what was simulated."""
    import sys

    sys.path.insert(0, str(Path(__file__).parent))
    from power import LOOPED, NEW, POINTS

    from bayeslaw.design.aims import aim_of
    from bayeslaw.design.belief import Belief
    from bayeslaw.design.candidates import candidates
    from bayeslaw.design.detection import either_way
    from bayeslaw.design.knowledge import Knowledge, runs_to_come
    from bayeslaw.fit import fit

    posterior = fit("isodepth")
    knowledge = Knowledge.of(posterior, [NEW])
    delta = aim_of(f"delta_phi:{NEW}", knowledge).parts
    simulated = json.loads(POWER.read_text())["rows"]
    places = [(budget, 64 * width, int(r)) for budget, width in POINTS for r in LOOPED]
    runs = candidates(posterior, knowledge.families, recipes=[NEW], purse=np.inf, recurrences=[int(r) for r in LOOPED])
    found = {(run.budget, run.d_model, run.recurrences): i for i, run in enumerate(runs)}
    eta, noise, shared = runs_to_come(knowledge, runs)
    belief = Belief.of(delta, eta, noise=noise, shared=shared)
    mean, before = float(delta.mean()), float(delta.var(ddof=1))
    out = []
    for row in simulated:
        if row["deviations"] != "drawn and fitted":
            continue
        after = float(belief.observe_all(found[place] for place in places[: row["n"]]).variance[0])
        # At no difference either sign is a false alarm; with one only the right sign counts.
        chance = either_way(row["delta"], mean, before, after) * (2 if row["delta"] == 0 else 1)
        seen = row["declared_higher"] + (row["declared_lower"] if row["delta"] == 0 else 0)
        out.append(
            {
                "n": row["n"], "delta": row["delta"], "replicates": row["replicates"], "formula": chance,
                "simulated": seen, "sd_formula": float(np.sqrt(after)), "sd_simulated": row["posterior_sd"],
            }
        )  # fmt: skip
    return out


def speed() -> list[dict[str, Any]]:
    """Seconds of one proposal over candidates, 4,000 draws."""
    from bayeslaw.design.belief import Belief
    from bayeslaw.design.search import within

    out = []
    for count in (125, 250, 500):
        rng = np.random.default_rng(count)
        hidden = rng.standard_normal((4000, 8))
        losses = 0.01 * hidden @ rng.standard_normal((8, count))
        quantity = hidden @ rng.standard_normal((8, 1))
        cost = np.exp(rng.uniform(0, 4, count))
        started = time.perf_counter()
        belief = Belief.of(quantity, losses, noise=np.full(count, 0.003**2))
        stated = time.perf_counter() - started
        runs = within(belief, cost, 200.0)
        out.append({"candidates": count, "belief": stated, "seconds": time.perf_counter() - started, "runs": len(runs)})
    return out


def _at_least(row: dict[str, Any], name: str) -> str:
    return f"{row[name]:.2f}" if row["reached"] == row["seeds"] else f"over {row[name]:.2f}"


def report(answer: dict[str, Any]) -> str:
    """The tables as Markdown."""
    machine = answer["machine"]
    lines = [
        "# What choosing the next runs by the posterior saves",
        "",
        f"`python benchmarks/replay.py`, {answer['date']}, {machine['cores']} cores, {machine['system']}, "
        + ", ".join(f"{name} {value}" for name, value in answer["versions"].items())
        + f"; {answer['seconds']:.0f} s.",
        "",
        "The 116 runs of isodepth replayed under the coupled law, power map, no deviation, Gaussian errors, from the "
        "16 cheapest on (their cost not counted). Share: FLOPs to the target over those of cheapest-first, "
        f"{FURTHER} runs.",
    ]
    for target, title in (("phi", "Sd of phi"), ("regret", f"Expected regret at {FLOPS:g} FLOPs, nats per token")):
        if target not in answer:
            continue
        part = answer[target]
        first = part["cheapest-first"]
        lines += [
            "",
            f"## {title}",
            "",
            f"{part['at_start']:.3g} at the start, {part['target']:.3g} the target, {part['of_all_runs']:.3g} with all "
            f"runs. phi of all runs is {part['phi_of_all_runs']:.3f}.",
            "",
            "| policy | seeds | reached it | share of FLOPs | least | most | at the first look below | runs "
            "| off phi of all runs |",
            "|" + "---|" * 9,
            f"| cheapest-first | all orders | all | 1 | | | | {first['runs']} | {first['phi_off']:.3f} |",
        ]
        lines += [
            f"| {name} | {row['seeds']} | {row['reached']} | {_at_least(row, 'share')} | {row['share_least']:.2f} "
            f"| {row['share_most']:.2f} "
            f"| {_at_least(row, 'first_look')} | {row['runs']:.0f} | {row['phi_off']:.3f} |"
            for name, row in part["policies"].items()
        ]
    if "detection" in answer:
        lines += [
            "",
            "## Whether a difference in phi will be declared",
            "",
            "The formula of `bayeslaw/design/detection.py` before any run of the new recipe, on the designs of "
            "`benchmarks/power.py`, beside the shares that its simulations declared (delta 0: with either sign).",
            "",
            "| n | delta | formula | simulated | replicates | sd of delta, formula | simulated |",
            "|" + "---|" * 7,
        ]
        lines += [
            f"| {row['n']} | {row['delta']:g} | {row['formula']:.2f} | {row['simulated']:.2f} | {row['replicates']} "
            f"| {row['sd_formula']:.3f} | {row['sd_simulated']:.3f} |"
            for row in answer["detection"]
        ]
        lines += [
            "",
            "The simulations keep the baseline's deviations from the map where its own fit puts them, so their",
            "estimates scatter less than the posterior says, and more of them are declared; and the spread between",
            "recipes, which the fit learns, draws small differences to 0. The formula draws the baseline's deviations",
            "too.",
        ]
    if "speed" in answer:
        lines += ["", "## Speed", "", "One proposal for a purse, 4,000 draws:", ""]
        lines += [
            f"- {row['candidates']} candidates: {row['seconds']:.2f} s for {row['runs']} runs, {row['belief']:.2f} s "
            "of it for the covariances."
            for row in answer["speed"]
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--parts", default="speed,detection,phi,regret")
    arguments = parser.parse_args()

    from bayeslaw.version import versions

    started = time.perf_counter()
    answer: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    before = answer.get("seconds", 0.0) if arguments.parts != parser.get_default("parts") else 0.0
    lab = Lab()

    def tell(part: str, found: Any) -> None:
        """What is done stays if the rest is stopped."""
        answer.update(
            {
                part: found,
                "date": f"{datetime.now(UTC):%Y-%m-%d}",
                "machine": {"cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
                "versions": versions("numpy", "pymc", "nutpie", "numba"),
                "seconds": before + time.perf_counter() - started,
            }
        )
        OUT.write_text(json.dumps(answer, indent=1) + "\n")
        OUT.with_suffix(".md").write_text(report(answer) + "\n")

    for part in arguments.parts.split(","):
        if part == "speed":
            tell(part, speed())
        elif part == "detection":
            tell(part, detected())
        else:
            replay(lab, part, arguments.seeds, lambda found, part=part: tell(part, found))
    print(report(answer))


if __name__ == "__main__":
    main()
