"""Likelihood of answers under a network: batched, sorted by length, what contexts share computed once.

Shapes: B sequences of a pass, T tokens, N tokens of answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from models.layers import Prefix
from models.looped import LoopedTransformer
from trainer.data.format import Ids
from trainer.data.tokenizer import Tokenizer
from trainer.evaluation.sharing import grouped
from trainer.evaluation.tasks import Example

PASS_TOKENS = {"cpu": 2048, "cuda": 65_536}
"""Tokens of one forward pass, padding included, by device."""

KEYS_A_TOKEN = 8
"""Tokens attended to that take as much memory in a pass as one that is read."""

NO_TOKENS = "the answer has no token of its own"
TOO_LONG = "the answer is longer than the network's context"


@dataclass(frozen=True)
class Scores:
    """Scores of examples, of each choice of each; empty where an example was left out.

    Parameters
    ----------
    nats : tuple of tuple of float
        Of all tokens of a choice.
    tokens : tuple of tuple of int
        Of a choice.
    greedy : tuple of tuple of bool
        Whether every token of a choice is the likeliest.
    left_out : dict
        Place of an example -> why it has no score.
    shortened : frozenset of int
        Places of the examples whose context was cut to fit the network's.
    """

    nats: tuple[tuple[float, ...], ...]
    tokens: tuple[tuple[int, ...], ...]
    greedy: tuple[tuple[bool, ...], ...]
    left_out: dict[int, str]
    shortened: frozenset[int]

    def correct(self, place: int, gold: int) -> bool:
        """Whether an example is answered rightly.

        An answer alone must be the likeliest token by token; of several choices the right one must have the lowest mean
        loss per token.
        """
        if len(self.nats[place]) == 1:
            return self.greedy[place][0]
        means = [nats / tokens for nats, tokens in zip(self.nats[place], self.tokens[place], strict=True)]
        return means.index(min(means)) == gold


@dataclass(frozen=True)
class _Sequence:
    """What the network reads for one choice.

    Parameters
    ----------
    inputs : array of int
        Context and all but the last token of the answer.
    answer : array of int
        What should come next, after the last ``len(answer)`` inputs.
    """

    inputs: Ids
    answer: Ids


class Scorer:
    """Scores examples under one network with one number of recurrences.

    Parameters
    ----------
    model : LoopedTransformer
        On the device that it shall run on.
    tokenizer : Tokenizer
        Of the text that the network was trained on.
    recurrences : int, optional
        How often the shared block runs, the trained r by default.
    precision : str
        ``float32``, or ``bfloat16`` by autocast.
    pass_tokens : int, optional
        Tokens of one forward pass, by default those of `PASS_TOKENS`; less takes less memory.
    """

    def __init__(
        self,
        model: LoopedTransformer,
        tokenizer: Tokenizer,
        *,
        recurrences: int | None = None,
        precision: str = "float32",
        pass_tokens: int | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._recurrences = recurrences
        self._device = model.embedding.device
        self._bfloat16 = precision == "bfloat16"
        self._pass_tokens = pass_tokens or PASS_TOKENS.get(self._device.type, PASS_TOKENS["cpu"])

    def score(self, examples: Sequence[Example], *, told: Callable[[int], None] | None = None) -> Scores:
        """Score every choice of every example.

        Parameters
        ----------
        examples : sequence of Example
        told : callable, optional
            Told how many more choices have been scored, as they are.

        Raises
        ------
        UsageError
            The network has no parameters for so many recurrences.
        """
        sequences: list[_Sequence] = []
        owners: list[int] = []
        left_out: dict[int, str] = {}
        shortened: set[int] = set()
        for place, choices in enumerate(_encoded(examples, self._tokenizer)):
            if why := next(filter(None, (self._unscorable(answer) for _, answer in choices)), None):
                left_out[place] = why
                continue
            for context, answer in choices:
                fitting = self._fitted(examples[place], context, answer)
                sequences.append(_Sequence(np.concatenate([[self._tokenizer.bos], fitting, answer[:-1]]), answer))
                owners.append(place)
                if len(fitting) < len(context):
                    shortened.add(place)
        scored = self._scored(sequences, told)
        nats: list[list[float]] = [[] for _ in examples]
        tokens: list[list[int]] = [[] for _ in examples]
        greedy: list[list[bool]] = [[] for _ in examples]
        for place, sequence, (loss, likeliest) in zip(owners, sequences, scored, strict=True):
            nats[place].append(loss)
            tokens[place].append(len(sequence.answer))
            greedy[place].append(likeliest)
        return Scores(
            tuple(map(tuple, nats)),
            tuple(map(tuple, tokens)),
            tuple(map(tuple, greedy)),
            left_out,
            frozenset(shortened),
        )

    def _unscorable(self, answer: Ids) -> str | None:
        """Why an answer has no score, if it has none."""
        if not len(answer):
            return NO_TOKENS
        return TOO_LONG if len(answer) > self._model.architecture.seq_len else None

    def _fitted(self, example: Example, context: Ids, answer: Ids) -> Ids:
        """As much of a context as fits between BOS and the answer; whole parts go first, the oldest before others."""
        room = self._model.architecture.seq_len - len(answer)
        parts = example.context
        while len(context) > room and len(parts) > 1:
            parts = parts[1:]
            context = self._tokenizer.encode(["".join(parts).rstrip()])[0]
        return context[max(0, len(context) - room) :]

    def _scored(self, sequences: Sequence[_Sequence], told: Callable[[int], None] | None) -> list[tuple[float, bool]]:
        """Nats of each answer and whether all of it is the likeliest."""
        found: list[tuple[float, bool]] = [(0.0, False)] * len(sequences)
        for group in grouped([each.inputs for each in sequences]):
            # No answer's first token may be predicted by the shared part.
            first = min(len(sequences[place].inputs) - len(sequences[place].answer) for place in group.members)
            shared = min(group.shared, first)
            cache = None
            if shared > 0:
                tokens_T = torch.from_numpy(sequences[group.members[0]].inputs[:shared].astype(np.int64))
                with self._autocast():
                    cache = self._model.fill(tokens_T.to(self._device), recurrences=self._recurrences)
            own = sorted(group.members, key=lambda place: len(sequences[place].inputs))
            for members in self._passes(own, sequences, shared):
                answers = [sequences[place].answer for place in members]
                tails = [sequences[place].inputs[shared:] for place in members]
                losses_N, likeliest_N = self._pass(tails, answers, cache)
                place_N = np.repeat(np.arange(len(members)), [len(answer) for answer in answers])
                nats = np.bincount(place_N, losses_N, len(members))
                all_likeliest = np.bincount(place_N, ~likeliest_N, len(members)) == 0
                for member, loss, greedy in zip(members, nats, all_likeliest, strict=True):
                    found[member] = (float(loss), bool(greedy))
                if told:
                    told(len(members))
        return found

    def _passes(self, places: Sequence[int], sequences: Sequence[_Sequence], shared: int) -> Iterator[list[int]]:
        """Members of each forward pass, of sequences in the order of their lengths."""
        members: list[int] = []
        for place in places:
            longest = len(sequences[place].inputs) - shared
            # Keys of the shared part are copied for each of its sequences.
            taken = max(longest, (longest + shared) // KEYS_A_TOKEN)
            if members and (len(members) + 1) * taken > self._pass_tokens:
                yield members
                members = []
            members.append(place)
        if members:
            yield members

    def _pass(
        self, tails: Sequence[Ids], answers: Sequence[Ids], cache: Prefix | None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Losses of all tokens of these answers [N], nats, and whether each is the likeliest [N]."""
        width = max(map(len, tails))
        tokens_BT = np.zeros((len(tails), width), dtype=np.int64)  # padded on the right: nothing before it sees it
        places = []
        for row, (tail, answer) in enumerate(zip(tails, answers, strict=True)):
            tokens_BT[row, : len(tail)] = tail
            places.append(row * width + np.arange(len(tail) - len(answer), len(tail)))
        targets_N = np.concatenate(answers).astype(np.int64)
        with self._autocast():
            losses_N, likeliest_N = self._model.token_scores(
                torch.from_numpy(tokens_BT).to(self._device),
                torch.from_numpy(np.concatenate(places)).to(self._device),
                torch.from_numpy(targets_N).to(self._device),
                recurrences=self._recurrences,
                cache=cache,
            )
        return losses_N.double().cpu().numpy(), likeliest_N.cpu().numpy()

    def _autocast(self) -> contextlib.AbstractContextManager[None]:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16)


def _encoded(examples: Sequence[Example], tokenizer: Tokenizer) -> Iterator[list[tuple[Ids, Ids]]]:
    """Tokens of context and answer of each choice of each example.

    They are those of both texts together, split where the context's own end: how a tokenizer would read the text. White
    space that ends a context goes with the answer, as lm-eval has it.
    """
    pairs = []
    for example in examples:
        context = "".join(example.context)
        kept = context.rstrip()
        pairs.append((kept, [context[len(kept) :] + choice for choice in example.choices]))
    contexts = tokenizer.encode([context for context, _ in pairs])
    wholes = iter(tokenizer.encode([context + choice for context, choices in pairs for choice in choices]))
    for (_, choices), ids in zip(pairs, contexts, strict=True):
        yield [(ids, next(wholes)[len(ids) :]) for _ in choices]
