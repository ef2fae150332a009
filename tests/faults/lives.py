"""A process with torch loaded that forks `amptui` for each line it reads: fifty lives in the time of ten.

What is started is the command line as it is; only the import of torch is shared. Reads one JSON list of
arguments a line and answers with the process's number; ``{"wait": pid}`` waits for its end and answers with
its exit status, negative for a signal.
"""

import json
import os
import sys

import torch

import amptui.engine.description
import amptui.engine.loading
import amptui.engine.trainer
import amptui.launch
import amptui.running  # noqa: F401 - what every life would import anew
from amptui.cli import main


def warm_up() -> None:
    """Load what torch loads with the first step: a second of imports that every life would have anew."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    model(torch.zeros(1, 2)).sum().backward()
    optimizer.step()


def live() -> None:
    """Answer lines until there are no more."""
    warm_up()
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, dict):
            _, status = os.waitpid(asked["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            os.setsid()
            sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115 - the lines are the parent's
            os.dup2(2, 1)
            os._exit(main(asked))
        print(pid, flush=True)


if __name__ == "__main__":
    live()
