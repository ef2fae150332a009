"""Training data: real data sets, synthetic stand-ins, batches. Imports torch."""
