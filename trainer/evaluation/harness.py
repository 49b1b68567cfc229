"""Our networks behind lm-eval's interface, for its own evaluator and every kind of task that it has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayeslaw.errors import DataError, UsageError
from models.looped import LoopedTransformer
from trainer.checks import some
from trainer.data.tokenizer import Tokenizer
from trainer.evaluation.scoring import NO_TOKENS, Scorer
from trainer.evaluation.tasks import Example
from trainer.generate import generate
from trainer.trained import trained

SAMPLING = ("until", "max_gen_toks", "do_sample", "temperature", "top_k")
"""What a task may ask of a generation, by lm-eval's names."""


def harness_model(path: Path, *, tokenizer: str | None = None, recurrences: int | None = None) -> Any:
    """The network of a run's newest checkpoint, or of a checkpoint, as a model of lm-eval, on the CPU in float32.

    ``lm_eval.simple_evaluate(model=harness_model(RUN_DIR), tasks=[...])`` then works as for any model.

    Parameters
    ----------
    path : Path
        A run directory or a checkpoint's.
    tokenizer : str, optional
        See `trainer.trained.Trained.tokenizer`.
    recurrences : int, optional
        How often the shared block runs, the trained r by default.

    Raises
    ------
    UsageError
        lm-eval is not installed, or no tokenizer can be told.
    CheckpointError
        There is no checkpoint, or it is damaged.
    """
    found = trained(path)
    return as_harness_model(found.network(), found.tokenizer(tokenizer), recurrences=recurrences)


def as_harness_model(model: LoopedTransformer, tokenizer: Tokenizer, *, recurrences: int | None = None) -> Any:
    """A network as a model of lm-eval.

    Parameters
    ----------
    model : LoopedTransformer
        On the CPU, where `trainer.generate` makes text; for what is only scored on any device.
    tokenizer : Tokenizer
        Of the text that it was trained on.
    recurrences : int, optional
        How often the shared block runs, the trained r by default.

    Returns
    -------
    An `lm_eval.api.model.LM`.

    Raises
    ------
    UsageError
        lm-eval is not installed.
    """
    try:
        from lm_eval.api.model import LM  # type: ignore[import-untyped]
    except ImportError as error:
        raise UsageError(
            "lm-eval is not installed", do="pip install 'bayeslaw[eval]', in a checkout '.[eval]'"
        ) from error
    scorer = Scorer(model, tokenizer, recurrences=recurrences)

    class HarnessModel(LM):  # type: ignore[misc]
        """A looped network; its methods are lm-eval's, which says what they return."""

        def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
            return _loglikelihoods(scorer, [request.args for request in requests])

        def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
            texts = [request.args[0] for request in requests]
            return [_rolling(model, ids, tokenizer.bos, recurrences) for ids in tokenizer.encode(texts)]

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            return [_generated(model, tokenizer, *request.args, recurrences=recurrences) for request in requests]

    return HarnessModel()


def _loglikelihoods(scorer: Scorer, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
    """Log-likelihood of each continuation, nats, and whether it is the likeliest token by token."""
    scores = scorer.score([Example((context,), (continuation,)) for context, continuation in pairs])
    too_long = [place for place, reason in scores.left_out.items() if reason != NO_TOKENS]
    if too_long:
        raise DataError(
            f"the continuation of request {too_long[0]}: {scores.left_out[too_long[0]]}",
            do=f"leave the task out; it has {len(too_long)} such requests",
        )
    # Nothing follows for certain.
    return [
        (0.0, True) if place in scores.left_out else (-nats[0], greedy[0])
        for place, (nats, greedy) in enumerate(zip(scores.nats, scores.greedy, strict=True))
    ]


@torch.no_grad()
def _rolling(model: LoopedTransformer, ids: np.ndarray, bos: int, recurrences: int | None) -> float:
    """Log-likelihood of a whole text, nats: in windows as long as the context, each token predicted once."""
    from lm_eval.utils import get_rolling_token_windows  # type: ignore[import-untyped]

    total = 0.0
    device = model.embedding.device
    for inputs, predicted in get_rolling_token_windows(ids.tolist(), bos, model.architecture.seq_len, context_len=1):
        losses_N, _ = model.token_scores(
            torch.tensor([inputs], device=device),
            torch.arange(len(inputs) - len(predicted), len(inputs), device=device),
            torch.tensor(predicted, device=device),
            recurrences=recurrences,
        )
        total -= float(losses_N.double().sum())
    return total


def _generated(
    model: LoopedTransformer, tokenizer: Tokenizer, prompt: str, asked: Any, *, recurrences: int | None
) -> str:
    """Text after a prompt, up to the first of the texts to stop at, which is left out, or the document's end."""
    from lm_eval.models.utils import normalize_gen_kwargs  # type: ignore[import-untyped]

    wanted = normalize_gen_kwargs(asked)
    unknown = [name for name in wanted if name not in SAMPLING]
    if unknown:
        raise UsageError(f"the task asks for generation with {some(unknown)}", allowed=", ".join(SAMPLING))
    ids = generate(
        model,
        prompt,
        tokenizer=tokenizer,
        tokens=wanted["max_gen_toks"],
        temperature=wanted.get("temperature", 0.0),
        top_k=wanted.get("top_k"),
        recurrences=recurrences,
    )
    text = ""
    for piece in tokenizer.texts(iter(ids.__next__, tokenizer.bos)):
        text += piece
        ends = [place for stop in wanted["until"] if stop and (place := text.find(stop)) >= 0]
        if ends:
            return text[: min(ends)]
    return text
