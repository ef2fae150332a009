"""A plan as a script that knows nothing of amptui, and what ``amptui run --observe`` records of it."""

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.builders import read
from tests.loops.loop_interpreter import LoopRun
from tests.loops.loop_mismatches import Result, compare
from tests.loops.loop_plans import Example, LoopPlan
from tests.loops.loop_players import Unwatched
from tests.loops.loop_shapes import run_plan
from tests.loops.loop_truth import Dropped, TrueStep
from tests.terminal import amptui_command

_SCRIPT = """
import torch
from tests.loops.loop_plans import AutocastPlan, Clearing, LoopPlan, ScalerPlan
from tests.loops.scripted_plan import run_and_tell_truth

torch.set_num_threads(1)
run_and_tell_truth({plan!r}, "truth.json")
"""


def check_script(example: Example, folder: Path) -> Result:
    """Run the script with ``amptui run --observe`` in ``folder``, and compare with the truth it tells."""
    result, run_dir = Result(example), folder / "run"
    (folder / "train.py").write_text(_SCRIPT.format(plan=example.plan))
    command = amptui_command("run", "--observe", "--headless", "--run-dir", str(run_dir), "train.py")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert process.returncode == 0, process.stderr
    if "stopped watching" in process.stderr:
        result.add("fault", None, process.stderr)
    truth = json.loads((folder / "truth.json").read_text())
    if truth["weights"] != truth_of(run_plan(example.plan, Unwatched()))["weights"]:
        result.add("bits", None, None)
    journal = run_dir / "journal.jsonl"
    steps = [
        TrueStep(**{**step, "precisions": tuple(step["precisions"]), "lrs": tuple(step["lrs"])})
        for step in truth["steps"]
    ]
    records = [*read(journal)] if journal.exists() else []
    compare(result, 0, records, steps, [Dropped(**drop) for drop in truth["dropped"]])
    return result


def run_and_tell_truth(plan: LoopPlan, path: str) -> None:
    """Run the plan, and write down what its steps were and the weights that it left."""
    Path(path).write_text(json.dumps(truth_of(run_plan(plan, Unwatched()))))


def truth_of(run: LoopRun) -> dict[str, Any]:
    """What a run has to tell, in types of JSON."""
    weights = [parameter.tolist() for player in run.players for parameter in player.parameters]
    return {
        "steps": [asdict(step) for step in run.truth.steps],
        "dropped": [asdict(drop) for drop in run.truth.dropped],
        "weights": repr(weights),
    }
