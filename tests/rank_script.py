"""A DDP script as people write it, which ``torchrun`` starts; writes down what each of its steps did.

``rank_script.py OUT KIND STEPS``: KIND says what of amptui it calls, and what happens to it. After STEPS it
goes on until there is a file ``OUT/stop``.
"""

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS: list[tuple[str, str]] = []
"""The precision of each step, and a hash of the weights after it."""


class Script:
    def __init__(self, kind: str, stop: Path) -> None:
        self.kind = kind
        self.stop = stop
        self.rank = dist.get_rank()
        data_rank = self.rank
        torch.manual_seed(0)
        layers = nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)
        self.model: nn.Module
        if kind == "sharded":
            self.model = nn.Sequential(*layers)
            fully_shard(self.model)
        elif kind == "mesh":  # of two by two, with FSDP2 and tensor parallelism
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            self.model = parallelize_module(nn.Sequential(*layers), mesh["tp"], plan)
            fully_shard(self.model, mesh=mesh["dp"])
            data_rank = mesh.get_local_rank("dp")
        else:
            self.model = DistributedDataParallel(nn.Sequential(*layers))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.data = torch.Generator().manual_seed(data_rank)
        self.monitor: Any = None
        self.open()

    def open(self) -> None:
        """Call amptui as ``kind`` says."""
        if self.kind.startswith("bare"):
            return
        import amptui
        from amptui.guest import processes
        from amptui.ranks import progress

        if self.kind == "only rank 0":
            processes.SIGN_IN_SECONDS = 0.5
            if self.rank:
                return
        if self.kind == "stuck":
            progress.AWAITED_SECONDS = 2.0
            processes.HANG_SECONDS = 4.0  # type: ignore[attr-defined]
        self.monitor = amptui.watch(self.model, self.optimizer, save=self.save)

    def save(self) -> None:
        """Both ranks call it after the same step: else this would hang."""
        dist.barrier()

    def turns(self, least: int) -> Iterable[int]:
        """So many, and more until rank 0 finds that the script is to stop: the same number on all ranks."""
        for turn in count():
            if turn >= least:
                goes_on = torch.tensor(int(not self.stop.exists()))
                dist.broadcast(goes_on, 0)
                if not goes_on:
                    return
            yield turn

    def batches(self, turns: Iterable[int]) -> Iterable[Tensor]:
        for _ in turns:
            yield torch.randn(8, 16, generator=self.data)

    def train(self, steps: int) -> None:
        if self.kind.endswith("uneven"):
            for epoch in self.turns(steps // 10):
                with self.model.join():  # type: ignore[operator]
                    self.run(self.batches(range(9 + self.rank + epoch % 2)))
            return
        batches = self.batches(self.turns(steps))
        if self.monitor is None:
            self.run(batches)
        else:
            self.run(self.monitor.steps(batches))

    def run(self, batches: Iterable[Tensor]) -> None:
        for batch in batches:
            self.optimizer.zero_grad()
            precision = "fp32" if self.monitor is None else self.monitor.precision
            with nullcontext() if self.monitor is None else self.monitor.autocast():
                loss = self.model(batch).square().mean()
            if self.monitor is None:
                loss.backward()
                self.optimizer.step()
            else:
                self.monitor.backward(loss)
                self.monitor.step()
            STEPS.append((precision, self.weights()))
            if self.kind.endswith("killed") and self.rank == 1 and len(STEPS) >= 30 and self.stop.exists():
                os.kill(os.getpid(), signal.SIGKILL)
            if self.kind == "stuck" and self.rank == 1 and len(STEPS) == 30:
                time.sleep(15)
            if self.kind == "failing" and self.rank == 1 and self.stop.exists():
                raise ArithmeticError("a wrong number")
            if self.fails_now and self.rank == int(self.kind[-1]) and self.stop.exists():
                if self.kind.startswith("killed"):
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ArithmeticError("only once")
            if self.kind != "bare":
                time.sleep(0.001)

    @property
    def fails_now(self) -> bool:
        """Whether these are the ranks of ``failing once: rank N`` that do not reach the end."""
        return "once" in self.kind and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

    def weights(self) -> str:
        held = [getattr(p, "_local_tensor", p) for p in self.model.parameters()]
        return hashlib.sha1(
            b"".join(p.detach().numpy().tobytes() for p in held), usedforsecurity=False
        ).hexdigest()[:12]


def main(out: str, kind: str, steps: str) -> None:
    """Train, and write the steps to ``out``."""
    dist.init_process_group("gloo")
    script = Script(kind, Path(out) / "stop")
    script.train(1_000_000_000 if script.fails_now else int(steps))
    (Path(out) / f"{script.rank}.json").write_text(json.dumps(STEPS))
    sys.stdout.write(f"rank {script.rank} is done\n")  # in one piece: the ranks write at once
    # A group that is destroyed right after a collective aborts the process now and then (pytorch 190489).
    dist.barrier()
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
