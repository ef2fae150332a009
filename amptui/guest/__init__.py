"""Somebody else's training loop: `observe()`, `watch()`, `amptui run`, and the run that each opens."""
