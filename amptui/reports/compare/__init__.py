"""Compares runs: FP32 against AMP to the end of training, with the spread between seeds."""
