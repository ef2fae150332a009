"""The loop that a tutorial would write, for the same experiment: what amptui is measured against.

    python -m tests.benchmarks.plain_loop MODEL STEPS SETTING=VALUE ...

Prints one JSON object: seconds for the steps after the first ten, and how many those were.
"""

import json
import sys
import time
from pathlib import Path

import torch

from amptui.data.sources import DataRequest
from amptui.engine.loading import build_experiment, load_class
from amptui.engine.setup import build_model, choose_device, open_data, seed_everything
from amptui.modelspec import parse_model

WARM_UP_STEPS = 10


def main(model_text: str, steps: int, settings: dict[str, str]) -> None:
    """Train ``steps`` steps in FP32 and time those after the warm-up, device work included."""
    device = choose_device("auto")
    seed_everything(0)
    experiment = build_experiment(load_class(parse_model(model_text)), settings)
    data = experiment.load_data(DataRequest(data_dir=Path("unused"), kind="synthetic"))
    batches, _ = open_data(data, device, experiment.batch_size, 0)
    model, optimizer = build_model(experiment, device)
    done, epoch, started = 0, 0, 0.0
    while done < steps:
        epoch += 1
        for batch in batches.epoch(epoch):
            if done == WARM_UP_STEPS:
                wait(device)
                started = time.perf_counter()
            optimizer.zero_grad()
            loss = experiment.loss(model, batch)
            assert isinstance(loss, torch.Tensor)
            loss.backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    wait(device)
    print(json.dumps({"steps": steps - WARM_UP_STEPS, "seconds": time.perf_counter() - started}))


def wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), dict(pair.split("=", 1) for pair in sys.argv[3:]))
