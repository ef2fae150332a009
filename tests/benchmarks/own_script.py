"""A training script as a user has it, for a comparison with and without amptui.

    python -m tests.benchmarks.own_script [--width N] [--steps N] [--form FORM]

FORM is ``bare`` or the call that the script makes: ``observe`` or ``watch``. It trains so many steps for each
line that it reads, and answers with one JSON line: the seconds of a step, and those of its thread.
"""

import argparse
import json
import sys
import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

WARM_UP_STEPS = 20


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--form", choices=("bare", "observe", "watch"), default="bare")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width = options.width
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device == "cuda")
    scaler = torch.amp.GradScaler(device, enabled=False)
    autocast: Any = nullcontext
    if options.form == "observe":
        import amptui

        amptui.observe(model, optimizer)
    elif options.form == "watch":
        import amptui

        monitor = amptui.watch(model, optimizer)
        scaler, autocast = monitor.scaler, monitor.autocast
    inputs, labels = torch.randn(128, width, device=device), torch.randint(width, (128,), device=device)

    def steps(count: int) -> dict[str, float]:
        begun = time.perf_counter(), time.thread_time()
        for _ in range(count):
            optimizer.zero_grad()
            with autocast():
                loss = nn.functional.cross_entropy(model(inputs), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        seconds, thread_seconds = time.perf_counter() - begun[0], time.thread_time() - begun[1]
        return {"seconds": seconds / count, "thread_seconds": thread_seconds / count}

    steps(WARM_UP_STEPS)
    print(flush=True)
    for _line in sys.stdin:
        print(json.dumps(steps(options.steps)), flush=True)


if __name__ == "__main__":
    main()
