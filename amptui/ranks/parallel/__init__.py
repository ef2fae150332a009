"""DDP and FSDP2 around an experiment's loss."""
