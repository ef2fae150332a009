"""What a model is trained on: real data sets, synthetic stand-ins, batches. Torch lives here."""
