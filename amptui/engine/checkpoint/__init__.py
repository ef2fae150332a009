"""Checkpoints: what a run needs to go on from a step, copied beside the training and written whole."""
