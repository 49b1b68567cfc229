"""Point fits of the laws: `fit` by variable projection, `huber` the published procedure and its block bootstrap."""
