"""Our networks behind lm-eval's interface, and its own evaluator on three public tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bayeslaw.architecture import Architecture
from bayeslaw.errors import DataError, UsageError
from models.looped import LoopedTransformer
from tests.trainer.public_rows import on_hub, write_public
from trainer.data.tokenizer import ByteTokenizer
from trainer.evaluation.catalogue import DEFINITIONS
from trainer.evaluation.harness import as_harness_model, harness_model
from trainer.evaluation.public import public_task
from trainer.evaluation.scoring import Scorer
from trainer.generate import generate
from trainer.trained import trained


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_public(tmp_path_factory.mktemp("public"))


@pytest.fixture(scope="module")
def model() -> LoopedTransformer:
    torch.manual_seed(0)
    architecture = Architecture(
        d_model=32, prelude_layers=1, shared_layers=1, coda_layers=1, recurrences=2, vocab_size=256, seq_len=256,
        injection="linear",
    )  # fmt: skip
    network = LoopedTransformer(architecture, head_size=16)
    with torch.no_grad():
        torch.nn.init.normal_(network.head, std=0.3)
    return network.eval()


TOKENIZER = ByteTokenizer(bos=0)


def _log_likelihood(model: LoopedTransformer, context: str, continuation: str) -> float:
    """By one plain forward pass."""
    ids = [0, *(context + continuation).encode()]
    count = len(continuation.encode())
    with torch.no_grad():
        logits_TV = model(torch.tensor([ids[:-1]]))[0].double().log_softmax(-1)
    targets = torch.tensor(ids[1:])
    return float(logits_TV[torch.arange(len(targets)), targets][-count:].sum())


def test_lm_evals_own_evaluator(model, data, tmp_path, monkeypatch):
    import datasets
    import lm_eval
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    tasks = {"lambada": 0, "triviaqa": 1, "arc_easy": 1}
    for name, shots in tasks.items():
        text = f"task: {name}\ninclude: {DEFINITIONS / name}.yaml\nnum_fewshot: {shots}\n{on_hub(data, name)}"
        (tmp_path / f"{name}.yaml").write_text(text)
    manager = TaskManager(include_defaults=False, include_path=str(tmp_path))
    found = lm_eval.simple_evaluate(
        model=as_harness_model(model, TOKENIZER), tasks=list(tasks), task_manager=manager, bootstrap_iters=0, limit=4
    )
    for name in tasks:
        samples = found["samples"][name]
        assert len(samples) == 4
        for sample in samples:
            for request, (answer,) in zip(sample["arguments"], sample["resps"], strict=True):
                assert answer[0] == pytest.approx(_log_likelihood(model, *request), abs=1e-5 * len(request[1]))


def test_harness_scores_as_the_scorer(model, data):
    from lm_eval.api.instance import Instance

    task = public_task("arc_easy", data=data, shots=1)
    scores = Scorer(model, TOKENIZER).score(task.examples)
    pairs = [("".join(each.context), choice) for each in task.examples for choice in each.choices]
    harness = as_harness_model(model, TOKENIZER)

    def asked(kind: str, *arguments: tuple) -> list[Instance]:
        return [Instance(kind, {}, each, 0) for each in arguments]

    answers = harness.loglikelihood(asked("loglikelihood", *pairs))
    assert [value for value, _ in answers] == pytest.approx([-n for nats in scores.nats for n in nats], abs=1e-4)
    assert [greedy for _, greedy in answers] == [each for greedy in scores.greedy for each in greedy]
    assert harness.loglikelihood(asked("loglikelihood", ("a", ""))) == [(0.0, True)]
    with pytest.raises(DataError, match="longer than the network's context"):
        harness.loglikelihood(asked("loglikelihood", ("a", "b" * 300)))

    short, long = "a text " * 5, "a text " * 60
    (rolled,) = harness.loglikelihood_rolling(asked("loglikelihood_rolling", (short,)))
    assert rolled == pytest.approx(_log_likelihood(model, "", short), abs=1e-4)
    (rolled,) = harness.loglikelihood_rolling(asked("loglikelihood_rolling", (long,)))
    # The second window is full, and only what the first left over is scored in it.
    kept = len(long) - 256
    ids = torch.tensor(list(long.encode()))
    with torch.no_grad():
        logits_TV = model(ids[None, -257:-1])[0].double().log_softmax(-1)
    rest = float(logits_TV[torch.arange(256 - kept, 256), ids[-kept:]].sum())
    assert rolled == pytest.approx(_log_likelihood(model, "", long[:256]) + rest, abs=1e-3)


def test_harness_generates(finished):
    from lm_eval.api.instance import Instance

    run = next(path.parent for path in finished.rglob("checkpoints"))
    harness = harness_model(run)

    def text(**asked) -> str:
        return harness.generate_until([Instance("generate_until", {}, ("the loop ", asked), 0)])[0]

    ids = list(generate(trained(run).network(), "the loop ", tokens=30, temperature=0.0))
    plain = bytes(ids).split(b"\0")[0].decode("utf-8", "replace")
    assert len(plain) > 3
    assert text(max_gen_toks=30, until=[]) == plain
    stop = plain[2:4]
    assert text(max_gen_toks=30, until=[stop]) == plain[: plain.index(stop)]
    with pytest.raises(UsageError, match="num_beams"):
        text(max_gen_toks=3, num_beams=2)
