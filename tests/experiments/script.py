"""The loop by hand as a script of its own: ``python -m tests.experiments.script WEIGHTS``."""

import sys

import torch

from tests.experiments.by_hand import Loop, Training

TRAINING = Training(
    precision="fp16",
    accumulate=2,
    clip_norm=0.05,
    recipe={"data": "own order", "samples": 64, "validates": False, "spoilt": "3", "schedule": "cosine"},
)

if __name__ == "__main__":
    torch.save(Loop(TRAINING).run().weights, sys.argv[1])
