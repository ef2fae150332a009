"""What a script of a plan does: it knows nothing of amptui."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.loops.loop_interpreter import LoopRun
from tests.loops.loop_plans import LoopPlan
from tests.loops.loop_players import Unwatched
from tests.loops.loop_shapes import run_plan


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
