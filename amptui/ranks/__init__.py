"""Training in several processes, one rank each: torchrun starts them, DDP averages their gradients."""
