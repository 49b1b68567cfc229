"""Text: from documents over packed shards to the batch of every step.

Corpora of bytes are read as they are; larger ones are tokenised and packed once (`writing.pack`) and mapped into
memory.
"""

from trainer.data.batches import Batches, require_held_out, validation_sequences
from trainer.data.corpora import (
    FINEWEB_EDU,
    HUB_CORPORA,
    STDLIB,
    Corpus,
    context_and_vocabulary,
    held_out,
    load_corpus,
    on_this_machine,
    require_fit,
)

__all__ = [
    "FINEWEB_EDU",
    "HUB_CORPORA",
    "STDLIB",
    "Batches",
    "Corpus",
    "context_and_vocabulary",
    "held_out",
    "load_corpus",
    "on_this_machine",
    "require_fit",
    "require_held_out",
    "validation_sequences",
]
