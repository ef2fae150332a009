"""Checkpoints: what a run needs to resume from a step, copied and written while it trains."""
