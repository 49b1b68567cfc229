"""The held-out text that a run was validated on, as a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bayeslaw.errors import UsageError
from bayeslaw.evaluations import VALIDATION, key_of
from trainer.config import TrainConfig
from trainer.data.batches import validation_sequences
from trainer.data.corpora import Corpus, load_corpus
from trainer.data.format import Ids


@dataclass(frozen=True)
class HeldOut:
    """The held-out text of a run's corpus, as a task.

    Parameters
    ----------
    config : TrainConfig
        Of the run.
    """

    config: TrainConfig
    name = "held_out"

    @property
    def corpus(self) -> Corpus:
        """The corpus, as it was trained on.

        Raises
        ------
        UsageError
            It is not here, or no longer what it was.
        """
        data = self.config.data
        corpus = load_corpus(data.corpus)
        if data.corpus_digest not in (None, corpus.digest):
            raise UsageError(
                f"the corpus {data.corpus} has the digest {corpus.digest} here",
                allowed=f"{data.corpus_digest}, that of the training: else what is held out may have been trained on",
                do="evaluate where the run was trained, or with --no-held-out",
            )
        return corpus

    @property
    def record(self) -> dict[str, Any]:
        """What an evaluation says of it."""
        digest, tokens = self.corpus.digest, self.config.data.validation_tokens
        return {
            "name": self.name,
            "axis": VALIDATION,
            "shots": 0,
            "digest": key_of(digest, self.config.model.seq_len, tokens),
            "source": self.config.data.corpus,
            "settings": {"corpus_digest": digest, "validation_tokens": tokens},
        }

    @property
    def sequences(self) -> Ids:
        """Sequences [n, T + 1]: those that the training validated on."""
        return validation_sequences(self.corpus, self.config.model.seq_len, self.config.data.validation_tokens)
