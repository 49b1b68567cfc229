"""What a checkpoint holds for use: the network, and the tokenizer of the text that it was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bayeslaw.errors import UsageError
from models.looped import LoopedTransformer
from trainer import checkpoint
from trainer.config import TrainConfig
from trainer.data.corpora import HUB_CORPORA, STDLIB
from trainer.data.format import TRAIN, is_packed, read_meta
from trainer.data.tokenizer import ByteTokenizer, Tokenizer, digest, load_tokenizer, tokenizer_of
from trainer.layering import recorded_config
from trainer.sections import BYTE_VALUES
from trainer.states import require_same

MODEL = "model"
"""Part of a checkpoint that holds the network's weights."""

TEXT = ByteTokenizer(bos=0)
"""How corpora of text are read: a zero byte begins a document."""


@dataclass(frozen=True)
class Trained:
    """A checkpoint and the config of its run.

    Parameters
    ----------
    point : Checkpoint
    config : TrainConfig
    """

    point: checkpoint.Checkpoint
    config: TrainConfig

    @property
    def weights_digest(self) -> str:
        """Sixteen hexadecimal digits of the SHA-256 of the weights' file."""
        return str(self.point.files[MODEL + checkpoint.SUFFIX]["sha256"])[:16]

    def network(self) -> LoopedTransformer:
        """The network, on the CPU.

        Raises
        ------
        CheckpointError
            The weights are damaged, or of another architecture than the config.
        """
        model = LoopedTransformer(self.config.architecture, head_size=self.config.model.head_size)
        weights = self.point.tensors(MODEL)
        require_same(weights, dict(model.named_parameters()))
        model.load_state_dict(weights)
        return model.eval()

    def tokenizer(self, named: str | None = None) -> Tokenizer:
        """The tokenizer of the corpus: the one beside its packed shards, or bytes.

        Parameters
        ----------
        named : str, optional
            The tokenizer where the corpus is not here to say it, see `trainer.data.tokenizer.load_tokenizer`.

        Raises
        ------
        UsageError
            The corpus is not there to say which, it says another than the named one, or the network's vocabulary is
            smaller than the tokenizer's.
        DataError
            What the corpus says is damaged.
        """
        corpus, most = self.config.data.corpus, self.config.model.vocab_size
        if named is not None:
            tokenizer = load_tokenizer(named)
            if tokenizer.vocab_size > most:
                raise UsageError(
                    f"the tokenizer {named} has {tokenizer.vocab_size} tokens",
                    allowed=f"at most {most}, the vocabulary of the network",
                    do="name the tokenizer that the network's corpus was packed with",
                )
            if is_packed(Path(corpus)) and digest(tokenizer_of(read_meta(Path(corpus), TRAIN))) != digest(tokenizer):
                raise UsageError(
                    f"the tokenizer {named} is not the one that {corpus} was packed with",
                    allowed="the tokenizer of the network's corpus: its token ids mean nothing under another",
                    do="leave --tokenizer out",
                )
            return tokenizer
        if is_packed(Path(corpus)):
            return tokenizer_of(read_meta(Path(corpus), TRAIN))
        if corpus in HUB_CORPORA or (corpus != STDLIB and most > BYTE_VALUES and not Path(corpus).exists()):
            raise UsageError(
                f"the corpus {corpus!r} is not here to say how its text was tokenised",
                allowed="--tokenizer with a tokenizer.json, a name of the hub, or bytes",
                do="name the tokenizer, or call from the folder that the run was trained in",
            )
        return TEXT


def trained(path: Path) -> Trained:
    """A run's newest checkpoint, or a checkpoint.

    Parameters
    ----------
    path : Path
        A run directory or a checkpoint's.

    Raises
    ------
    CheckpointError
        There is no checkpoint, or its record is damaged.
    """
    point = checkpoint.read(path)
    return Trained(point, recorded_config(point.facts, point.path))
