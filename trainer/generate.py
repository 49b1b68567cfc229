"""Text from a trained network, token by token, with a key-value cache or without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from bayeslaw.architecture import Architecture
from bayeslaw.errors import UsageError
from models.layers import Cache
from models.looped import LoopedTransformer
from trainer.checks import is_positive, nearest, require_count
from trainer.data.tokenizer import Tokenizer
from trainer.sections import MOST_LAYERS
from trainer.trained import TEXT, trained

DECODINGS = ("cached", "plain")
"""``plain`` runs the whole window through the network for every token, ``cached`` only what is new."""

MOST = 2**63


def load_model(path: Path) -> LoopedTransformer:
    """The network of a run's newest checkpoint, or of a checkpoint, see `trainer.trained`.

    It computes in float64: the rounding in which the two decodings differ then decides nothing.
    """
    return trained(path).network().double()


def generate(
    model: LoopedTransformer,
    prompt: str,
    *,
    tokenizer: Tokenizer = TEXT,
    tokens: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    recurrences: int | None = None,
    decoding: str = "cached",
) -> Iterator[int]:
    """The tokens that follow a prompt, one after another; the tokenizer's BOS ends a document.

    The network sees a window of at most its context. When the window is full, its older half is dropped, by both
    decodings alike.

    Parameters
    ----------
    model : LoopedTransformer
    prompt : str
        The beginning of a document, empty for none.
    tokenizer : Tokenizer
        Of the text that the network was trained on, see `trainer.trained.Trained.tokenizer`.
    tokens : int
        How many tokens.
    temperature : float
        Divides the logits; 0 takes the likeliest token.
    top_k : int, optional
        Choose among so many likeliest tokens.
    seed : int
        Of the draws.
    recurrences : int, optional
        How often the shared block runs, the trained r by default.
    decoding : str
        One of `DECODINGS`.

    Raises
    ------
    UsageError
        A value that cannot be meant, or recurrences that the network has no parameters for or that would take hours.
    """
    if not isinstance(prompt, str):
        raise UsageError(f"prompt = {prompt!r}", allowed="a text")
    counts = (("tokens", tokens, 1), ("top_k", top_k, 1), ("seed", seed, 0), ("recurrences", recurrences, 1))
    for name, value, least in counts:
        if value is not None:
            require_count(name, value, least)
            if value >= MOST:
                raise UsageError(f"{name} = {value}", allowed="a whole number below 2^63")
    if recurrences is not None:
        _require_layers(model.architecture, recurrences)
    if temperature != 0 and not is_positive(temperature):
        raise UsageError(f"temperature = {temperature!r}", allowed="a finite number, 0 or more; 0 is greedy")
    if decoding not in DECODINGS:
        raise UsageError(f"decoding {decoding!r}", allowed=", ".join(DECODINGS), do=nearest(decoding, DECODINGS))
    window = _Window(model, recurrences, cached=decoding == "cached", vocab_size=tokenizer.vocab_size)
    for token in (tokenizer.bos, *tokenizer.encode([prompt])[0].tolist()):
        window.append(token)
    return _tokens(window, window.logits(), tokens, temperature, top_k, torch.Generator().manual_seed(seed))


def _require_layers(architecture: Architecture, recurrences: int) -> None:
    """Refuse recurrences through which a token would take hours."""
    once, shared = architecture.prelude_layers + architecture.coda_layers, architecture.shared_layers
    if (layers := once + recurrences * shared) > MOST_LAYERS:
        raise UsageError(
            f"recurrences = {recurrences} of {shared} shared layers: {layers:,} layers in all",
            allowed=f"at most {MOST_LAYERS:,} layers, prelude and coda included",
            do=f"the most are --recurrences {(MOST_LAYERS - once) // shared}",
        )


def _tokens(
    window: _Window, logits_V: Tensor, tokens: int, temperature: float, top_k: int | None, generator: torch.Generator
) -> Iterator[int]:
    for left in reversed(range(tokens)):
        token = _choose(logits_V, temperature, top_k, generator)
        yield token
        if left:
            window.append(token)
            logits_V = window.logits()


def _choose(logits_V: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    if top_k is not None and top_k < len(logits_V):
        least = logits_V.topk(top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < least, -torch.inf)
    probability_V = ((logits_V - logits_V.max()) / temperature).softmax(dim=0)
    return int(torch.multinomial(probability_V, 1, generator=generator))


class _Window:
    """The tokens that the network sees, and what of them its cache holds."""

    def __init__(self, model: LoopedTransformer, recurrences: int | None, *, cached: bool, vocab_size: int) -> None:
        self._model = model
        self._recurrences = recurrences
        self._seq_len = model.architecture.seq_len
        self._tokens: list[int] = []
        self._cached = cached
        self._vocab_size = vocab_size
        self._cache: Cache | None = None

    def append(self, token: int) -> None:
        """Add a token; of a full window the older half makes room."""
        if len(self._tokens) == self._seq_len:
            del self._tokens[: max(1, self._seq_len // 2)]
            self._cache = None
        self._tokens.append(token)

    @torch.no_grad()
    def logits(self) -> Tensor:
        """Logits [vocab_size] of the token after the window."""
        if self._cached and self._cache is None:
            self._cache = Cache(self._seq_len)
        new = self._tokens[self._cache.length if self._cache else 0 :]
        logits_1TV: Tensor = self._model(torch.tensor([new]), recurrences=self._recurrences, cache=self._cache)
        return logits_1TV[0, -1, : self._vocab_size]
