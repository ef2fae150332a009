"""A training script as a user has it, for a comparison with and without amptui: prints one JSON line.

    python -m tests.benchmarks.own_script [--precision P] [--width N] [--steps N] [--form FORM] [--fault NAME]

FORM is ``bare`` or the call that the script makes: ``observe`` or ``watch``. ``--fault`` lets one place in
amptui fail. With ``--turns`` it trains so many steps for each line that it reads, and answers each.
"""

import argparse
import hashlib
import json
import sys
import time
from functools import partial
from unittest.mock import patch

import torch
from torch import nn

from tests.observed import AUTOCAST

WARM_UP_STEPS = 20

FAULTS = {
    "autocast": "amptui.guest.loop.observed_loop.ObservedLoop.after_autocast",
    "scale": "amptui.guest.loop.loop_hooks.mark_scaled",
    "backward": "amptui.engine.probes.gradients.GradientProbe.measure",
    "unscale": "amptui.guest.loop.observed_optimizer.ObservedOptimizer._name_overflow",
    "step": "amptui.engine.lr_schedule.LearningRateReader.read",
    "before update": "amptui.guest.loop.observed_optimizer.current_scale",
    "after update": "amptui.guest.loop.observed_optimizer.growth_tracker",
    "first step": "amptui.guest.run.describe",
    "push": "amptui.guest.loop.loop_step.StepFacts",
    "look": "amptui.engine.allocator.AllocatorWatch.look",
}
"""For each hook a function of ours that it calls: let it fail, and nothing may happen to the loop."""


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", choices=AUTOCAST, default="fp32")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--form", choices=("bare", "observe", "watch"), default="bare")
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--turns", action="store_true")
    options = parser.parse_args()
    if options.fault:
        with patch(FAULTS[options.fault], side_effect=ZeroDivisionError("on purpose")):
            train(options)
    else:
        train(options)


def train(options: argparse.Namespace) -> None:
    """Train, and print how long it took, what it left behind and, on the pretended GPU, where it waited."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, precision = options.width, AUTOCAST[options.precision]
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device == "cuda")
    scaler = torch.amp.GradScaler(device, enabled=precision is torch.float16, growth_interval=20)
    autocast = partial(torch.autocast, device, dtype=precision, enabled=precision is not None)
    if options.form == "observe":
        import amptui

        amptui.observe(model, optimizer, scaler)
    elif options.form == "watch":
        import amptui

        scales = scaler if scaler.is_enabled() else None
        monitor = amptui.watch(model, optimizer, precision=options.precision, scaler=scales)
        scaler, autocast = monitor.scaler, partial(monitor.autocast)
    inputs, labels = torch.randn(128, width, device=device), torch.randint(width, (128,), device=device)

    def steps(first: int, last: int) -> dict[str, float]:
        begun = time.perf_counter(), time.thread_time()
        for step in range(first, last):
            optimizer.zero_grad()
            with autocast():
                loss = nn.functional.cross_entropy(model(inputs * (1e6 if step == 50 else 1)), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        seconds, thread_seconds = time.perf_counter() - begun[0], time.thread_time() - begun[1]
        return {"seconds": seconds / (last - first), "thread_seconds": thread_seconds / (last - first)}

    steps(0, WARM_UP_STEPS)
    if options.turns:
        print(flush=True)
        for _line in sys.stdin:
            print(json.dumps(steps(100, 100 + options.steps)), flush=True)
        return
    waits_so_far()
    found = steps(WARM_UP_STEPS, options.steps)
    waits = waits_so_far()
    state = [*model.parameters(), *(value for each in optimizer.state.values() for value in each.values())]
    state += [torch.get_rng_state(), torch.tensor(scaler.get_scale())]
    digest = hashlib.sha256(b"".join(each.detach().cpu().numpy().tobytes() for each in state)).hexdigest()
    print(json.dumps({**found, "waits": waits, "state": digest}), flush=True)


def waits_so_far() -> int:
    """How often the host waited for the pretended GPU since the last call; 0 where there is none."""
    from tests.simcuda import device

    return len(device.take_waits()) if device.is_present() else 0


if __name__ == "__main__":
    main()
