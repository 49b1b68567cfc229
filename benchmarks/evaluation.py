"""Offline probes under a network of width 256: all at once against one example at a time, in turn.

    OMP_NUM_THREADS=1 python benchmarks/evaluation.py [--examples 1000] [--alone 50] [--repeats 3]

All examples of every probe are scored together, and the first of them one at a time, under the same network (six
effective layers, r = 4, a byte a token, float32). One at a time is a plain forward pass over the whole prompt of each
example: no batch, no padding, no cache, logits of every token. The scores of both are held to each other. Times are
those of an example, in seconds of the processor, since other work may share it. Writes
benchmarks/results/evaluation.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from bayeslaw.architecture import Architecture
from bayeslaw.version import versions
from models.looped import LoopedTransformer
from trainer.data.tokenizer import ByteTokenizer
from trainer.evaluation.probes import PROBES, probe
from trainer.evaluation.scoring import Scorer
from trainer.evaluation.tasks import Example

OUT = Path(__file__).parent / "results" / "evaluation.json"
TOKENIZER = ByteTokenizer(bos=0)


def network() -> LoopedTransformer:
    """A network of width 256 whose logits differ."""
    architecture = Architecture(
        d_model=256,
        prelude_layers=1,
        shared_layers=1,
        coda_layers=1,
        recurrences=4,
        vocab_size=256,
        seq_len=1024,
        injection="linear",
    )
    model = LoopedTransformer(architecture, head_size=64).eval()
    torch.nn.init.normal_(model.head, std=0.05, generator=torch.Generator().manual_seed(1))
    return model


@torch.no_grad()
def alone(model: LoopedTransformer, examples: Sequence[Example]) -> list[float]:
    """Nats of each answer, one example at a time."""
    found = []
    for example in examples:
        context = [TOKENIZER.bos, *"".join(example.context).encode()]
        answer = list(example.answer.encode())
        logits_TV = model(torch.tensor([[*context, *answer[:-1]]]))[0, len(context) - 1 :]
        found.append(float(torch.nn.functional.cross_entropy(logits_TV, torch.tensor(answer), reduction="sum")))
    return found


def timed(call: Callable[[], list[float]]) -> tuple[float, list[float]]:
    begun = time.process_time()
    found = call()
    return time.process_time() - begun, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--alone", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    model = network()
    scorer = Scorer(model, TOKENIZER)
    seconds: dict[str, dict[str, list[float]]] = {name: {"together": [], "alone": []} for name in PROBES}
    worst = 0.0
    for _ in range(arguments.repeats):
        for name, both in seconds.items():
            examples = probe(name, examples=arguments.examples).examples
            took, single = timed(lambda few=examples[: arguments.alone]: alone(model, few))
            both["alone"].append(took / len(single))
            took, batched = timed(lambda examples=examples: [nats for (nats,) in scorer.score(examples).nats])
            both["together"].append(took / len(batched))
            worst = max(worst, *(abs(a - b) for a, b in zip(single, batched, strict=False)))
    middle = {name: {way: statistics.median(each) for way, each in both.items()} for name, both in seconds.items()}
    total = {way: sum(both[way] for both in middle.values()) for way in ("alone", "together")}
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": versions("torch", "numpy"),
        "examples_of_each_probe": {"together": arguments.examples, "alone": arguments.alone},
        "repeats": arguments.repeats,
        "seconds_an_example": middle,
        "times_faster": {name: both["alone"] / both["together"] for name, both in middle.items()},
        "times_faster_in_all": total["alone"] / total["together"],
        "largest_difference_nats": worst,
    }
    OUT.write_text(json.dumps(result, indent=1) + "\n")
    for name, times in result["times_faster"].items():
        print(f"{name:20} {times:5.1f} times faster")
    print(f"{'all probes':20} {result['times_faster_in_all']:5.1f} times faster; scores agree to {worst:.1e} nats")


if __name__ == "__main__":
    main()
