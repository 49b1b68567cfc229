"""What to train next: runs that most reduce, per FLOP, what a person is unsure of."""
