"""bayeslaw's trainer package."""
