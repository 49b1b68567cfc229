"""bayeslaw's reports package."""
