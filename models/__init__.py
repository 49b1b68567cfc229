"""bayeslaw's models package."""
