"""What a model is trained on: real data sets, synthetic stand-ins, and batches on the device. Torch lives here."""
