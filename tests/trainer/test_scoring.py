"""Scores of answers: batches equal plain passes, an exact reader scores 0, a network that knows nothing ln V."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw.architecture import Architecture
from bayeslaw.errors import UsageError
from models.looped import LoopedTransformer
from tests.trainer.public_rows import write_public
from trainer.data.tokenizer import ByteTokenizer, load_tokenizer, trained
from trainer.evaluation.probes import PROBES, probe
from trainer.evaluation.public import public_task
from trainer.evaluation.scoring import NO_TOKENS, TOO_LONG, Scorer
from trainer.evaluation.sharing import OVERHEAD, grouped
from trainer.evaluation.tasks import Example

BYTES = ByteTokenizer(bos=0)


def network(*, vocab_size=256, seq_len=640, recurrences=2, injection="linear", coda_layers=1) -> LoopedTransformer:
    """A network whose every parameter matters."""
    architecture = Architecture(
        d_model=32, prelude_layers=1, shared_layers=1, coda_layers=coda_layers, recurrences=recurrences,
        vocab_size=vocab_size, seq_len=seq_len, injection=injection,
    )  # fmt: skip
    model = LoopedTransformer(architecture, head_size=16).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=draw)
    return model


@torch.no_grad()
def plain(model, tokenizer, example, choice, recurrences=None) -> tuple[float, int, bool]:
    """Nats, tokens and greediness of one choice by a forward pass over all of it."""
    context = "".join(example.context)
    kept = context.rstrip()
    before = tokenizer.encode([kept])[0]
    answer = tokenizer.encode([context + choice])[0][len(before) :].astype(np.int64)
    ids = torch.tensor([[tokenizer.bos, *before.tolist(), *answer.tolist()]])
    logits_TV = model(ids[:, :-1], recurrences=recurrences)[0, -len(answer) :]
    targets = torch.from_numpy(answer)
    nats = torch.nn.functional.cross_entropy(logits_TV.double(), targets, reduction="sum")
    return float(nats), len(answer), bool((logits_TV.argmax(1) == targets).all())


def require_equal(model, tokenizer, examples, recurrences=None, **options):
    scores = Scorer(model, tokenizer, recurrences=recurrences, **options).score(examples)
    assert not scores.left_out
    assert not scores.shortened
    for place, example in enumerate(examples):
        for number, choice in enumerate(example.choices):
            nats, tokens, greedy = plain(model, tokenizer, example, choice, recurrences)
            assert scores.nats[place][number] / tokens == pytest.approx(nats / tokens, abs=1e-5)
            assert scores.tokens[place][number] == tokens
            assert scores.greedy[place][number] == greedy


@pytest.mark.parametrize("pass_tokens", [None, 64])
def test_probes_in_batches_equal_one_at_a_time(pass_tokens):
    model = network()
    for name in PROBES:
        require_equal(model, BYTES, probe(name, examples=12).examples, pass_tokens=pass_tokens)


@pytest.mark.parametrize(
    ("injection", "recurrences", "asked"),
    [("none", 1, None), ("linear", 4, 7), ("additive", 2, 1), ("hyperconnections", 4, 3)],
)
def test_every_injection_and_r_at_test_time(injection, recurrences, asked):
    model = network(injection=injection, recurrences=recurrences, coda_layers=recurrences % 4 and 1)
    require_equal(model, BYTES, probe("assignment_d0_math", examples=8).examples, asked)


def test_public_tasks_in_batches_equal_one_at_a_time(tmp_path):
    data = write_public(tmp_path)
    model = network(seq_len=2048)
    for name in ("lambada", "triviaqa", "arc_easy"):
        task = public_task(name, data=data, shots=0 if name == "lambada" else 1)
        require_equal(model, BYTES, task.examples)


def test_a_tokenizer_of_pairs(tmp_path):
    path = tmp_path / "tokenizer.json"
    examples = probe("words", examples=10).examples
    path.write_bytes(trained(["".join((*each.context, each.answer)) for each in examples], 400))
    tokenizer = load_tokenizer(str(path))
    require_equal(network(vocab_size=tokenizer.vocab_size), tokenizer, examples)


def test_white_space_before_the_answer_counts_with_it():
    with_space = Example(("one two ",), ("three",))
    before_answer = Example(("one two",), (" three",))
    scores = Scorer(network(), BYTES).score([with_space, before_answer])
    assert scores.tokens[0] == scores.tokens[1] == (6,)
    assert scores.nats[0] == pytest.approx(scores.nats[1], abs=1e-5)


def test_choices_are_held_by_their_mean_loss():
    """A long answer is not worse for being long."""
    model = network()
    example = Example(("question",), (" a", " a longer one", " b"))
    scores = Scorer(model, BYTES).score([example])
    means = [nats / tokens for nats, tokens in zip(scores.nats[0], scores.tokens[0], strict=True)]
    best = int(np.argmin(means))
    assert [scores.correct(0, gold) for gold in range(3)] == [gold == best for gold in range(3)]


def test_a_network_that_knows_nothing_scores_the_logarithm_of_the_vocabulary():
    model = network()
    torch.nn.init.zeros_(model.head)
    examples = probe("induction", examples=20).examples
    scores = Scorer(model, BYTES).score(examples)
    for (nats,), (tokens,) in zip(scores.nats, scores.tokens, strict=True):
        assert nats == pytest.approx(tokens * math.log(256), rel=1e-6)


class Copying:
    """In the place of a network: expects what followed the longest stretch that ended as the text does now."""

    SURE = 1e-6  # what it leaves to all other tokens together

    def __init__(self):
        self.architecture = Architecture(
            d_model=16, prelude_layers=1, shared_layers=1, coda_layers=1, recurrences=1, vocab_size=256, seq_len=1024,
            injection="none",
        )  # fmt: skip
        self.embedding = torch.empty(0)

    def fill(self, tokens_T, *, recurrences=None):
        return tokens_T

    def token_scores(self, tokens_BT, places_N, targets_N, *, recurrences=None, cache=None):
        before = [] if cache is None else cache.tolist()
        width = tokens_BT.shape[1]
        losses, likeliest = [], []
        for place, target in zip(places_N.tolist(), targets_N.tolist(), strict=True):
            seen = before + tokens_BT[place // width, : place % width + 1].tolist()
            found = expected(seen) == target
            losses.append(-math.log(1 - self.SURE if found else self.SURE / 255))
            likeliest.append(found)
        return torch.tensor(losses, dtype=torch.float64), torch.tensor(likeliest)


def expected(seen: list[int]) -> int:
    text = bytes(seen)
    for length in range(len(text) - 1, 0, -1):
        at = text.rfind(text[-length:], 0, len(text) - 1)
        if at >= 0:
            return text[at + length]
    return 0


def test_a_copying_oracle_scores_near_nothing():
    task = probe("induction", examples=60)
    scores = Scorer(Copying(), BYTES).score(task.examples)
    right = sum(scores.correct(place, 0) for place in range(60))
    nats, tokens = sum(sum(each) for each in scores.nats), sum(sum(each) for each in scores.tokens)
    assert right >= 59  # two keys may end alike
    assert nats / tokens < 0.3
    shuffled = [
        replace(each, choices=(other.answer,)) for each, other in zip(task.examples, task.examples[1:], strict=False)
    ]
    assert not any(Scorer(Copying(), BYTES).score(shuffled).correct(place, 0) for place in range(59))


def test_a_long_context_loses_its_oldest_parts_first():
    model = network(seq_len=32)
    whole = Example(("oldest shot\n", "newer shot\n", "question:"), (" x",))
    kept = Example(("newer shot\n", "question:"), (" x",))
    scores = Scorer(model, BYTES).score([whole, kept, Example(("q" * 50,), (" x",)), Example(("q" * 30,), (" x",))])
    assert scores.shortened == {0, 2}
    assert scores.nats[0] == pytest.approx(scores.nats[1], abs=1e-5)
    assert scores.nats[2] == pytest.approx(scores.nats[3], abs=1e-5)


def test_answers_that_cannot_be_scored_are_left_out_and_named():
    scores = Scorer(network(seq_len=16), BYTES).score(
        [Example(("a",), ("",)), Example(("a",), ("b" * 17,)), Example(("a",), ("b" * 16,)), Example(("a",), ("b", ""))]
    )
    assert scores.left_out == {0: NO_TOKENS, 1: TOO_LONG, 3: NO_TOKENS}
    assert scores.tokens == ((), (), (16,), ())
    assert scores.shortened == {2}


def test_recurrences_without_parameters_are_refused():
    with pytest.raises(UsageError, match="recurrences = 2 in a network trained with 1"):
        Scorer(network(injection="none", recurrences=1), BYTES, recurrences=2).score([Example(("a",), ("b",))])


def saved(sequences, groups) -> int:
    return sum(group.shared * (len(group.members) - 1) - OVERHEAD for group in groups if group.shared)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=80), min_size=1, max_size=12))
def test_groups_share_what_they_say(sequences):
    arrays = [np.array(each, dtype=np.uint16) for each in sequences]
    groups = grouped(arrays)
    assert sorted(place for group in groups for place in group.members) == list(range(len(arrays)))
    for group in groups:
        first = sequences[group.members[0]]
        for place in group.members:
            assert sequences[place][: group.shared] == first[: group.shared]
            assert len(sequences[place]) > group.shared
    assert saved(arrays, groups) >= 0


def test_groups_save_what_can_be_saved():
    draw = random.Random(1)
    shots = [draw.randrange(256) for _ in range(200)]
    other = [draw.randrange(256) for _ in range(150)]
    sequences = [[*shots, *(draw.randrange(256) for _ in range(20))] for _ in range(30)]
    sequences += [[*other, *(draw.randrange(256) for _ in range(20))] for _ in range(10)]
    sequences += [[draw.randrange(256) for _ in range(60)] for _ in range(10)]
    groups = grouped([np.array(each, dtype=np.uint16) for each in sequences])
    best = (200 * 29 - OVERHEAD) + (150 * 9 - OVERHEAD)
    assert best <= saved(sequences, groups) <= best + 40
