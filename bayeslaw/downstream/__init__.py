"""Task losses against validation loss: what r changes beyond the validation loss, and how well one can tell."""
