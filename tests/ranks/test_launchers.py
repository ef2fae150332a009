"""Which rank a process is, by the variables of whoever started it."""

from contextlib import nullcontext
from typing import Any

import pytest

from amptui.base.errors import UsageError
from amptui.ranks.world import World, refuse_unsupported, variables_of, world_of, world_of_variables
from amptui.recipe.request import TrainRequest

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}

PLAIN = {name: value for name, value in TORCHRUN.items() if name != "TORCHELASTIC_RUN_ID"}

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "MASTER_ADDR": "node-1",
    "MASTER_PORT": "29500",
}

SRUN = {
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "MASTER_ADDR": "gpu7",
    "MASTER_PORT": "29500",
}

BATCH_SCRIPT = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
"""As Slurm's sbatch sets them for the script itself, and salloc for its shell, which has no SLURM_PROCID."""


@pytest.mark.parametrize(
    ("environment", "launcher", "master"),
    [
        (TORCHRUN, "torchrun", ""),
        (PLAIN, "another launcher", "localhost:29500"),
        (OPEN_MPI, "mpirun", "node-1:29500"),
        (SRUN, "srun", "gpu7:29500"),
        ({**SRUN, **OPEN_MPI}, "mpirun", "node-1:29500"),  # in an allocation of Slurm's
        ({**SRUN, **PLAIN}, "another launcher", "localhost:29500"),
    ],
)
def test_the_variables_of_a_launcher_say_which_rank_this_is(
    environment: dict[str, str], launcher: str, master: str
) -> None:
    world = world_of(environment)
    assert world == World(rank=3, local_rank=1, size=4, launcher=launcher, master=master)
    assert variables_of(world)["WORLD_SIZE"] == "4"
    assert variables_of(world)["MASTER_PORT"] == master.partition(":")[2]
    # What srun or mpirun starts may be scripts that know nothing of each other.
    is_known = all(name in environment for name in PLAIN)
    assert world_of_variables(environment) == (world if is_known else None)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0"},
        {name: value for name, value in TORCHRUN.items() if name != "MASTER_ADDR"},
        {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"},
        BATCH_SCRIPT,
        {name: value for name, value in BATCH_SCRIPT.items() if name != "SLURM_PROCID"},
        {**BATCH_SCRIPT, "SLURM_STEP_ID": str(0xFFFFFFFA), "SLURM_STEP_NUM_TASKS": "4"},
        {**SRUN, "SLURM_PROCID": "0", "SLURM_PTY_PORT": "40001"},
        {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"},
    ],
    ids=lambda environment: " ".join(environment.values()),
)
def test_a_shell_a_single_task_or_one_without_torchrun_s_variables_trains_alone(
    environment: dict[str, str],
) -> None:
    assert world_of(environment) is None


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({**TORCHRUN, "RANK": "first"}, "torchrun's variables: "),
        ({**PLAIN, "MASTER_ADDR": ""}, "MASTER_ADDR is not set: the ranks cannot find each other"),
        ({**PLAIN, "MASTER_PORT": "x"}, "MASTER_PORT is 'x', which is no port"),
        ({**PLAIN, "RANK": "4"}, "RANK=4 of WORLD_SIZE=4"),
        ({"WORLD_SIZE": "4"}, "RANK is not set"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "LOCAL_RANK is not set"),
        ({**SRUN, "MASTER_PORT": ""}, "MASTER_PORT is not set"),
    ],
)
def test_what_cannot_join_is_refused_in_one_line(environment: dict[str, str], what: str) -> None:
    with pytest.raises(UsageError) as refusal:
        world_of(environment)
    assert what in str(refusal.value)
    assert refusal.value.hint
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "ranks", "what"),
    [
        ({"device": "cuda:1"}, 2, "--device with 2 ranks: "),
        ({"fsdp": True, "channels_last": True}, 2, "--channels-last with --fsdp: "),
        ({"fsdp": True, "compile_mode": "default"}, 2, "--compile with --fsdp: "),
        ({"fsdp": True}, 1, "--fsdp with a single process"),
        ({"resume": True, "accumulate": 2, "device": "cuda:1"}, 1, ""),
        ({"device": "cuda", "compile_mode": "default", "clip_norm": 1.0, "validate_every": 5}, 2, ""),
        ({"fsdp": True, "accumulate": 2, "save_weights": "/w.pt"}, 2, ""),
    ],
)
def test_what_ranks_cannot_do_is_refused_and_nothing_else(
    options: dict[str, Any], ranks: int, what: str
) -> None:
    with pytest.raises(UsageError, match=f"^{what}") if what else nullcontext():
        refuse_unsupported(TrainRequest(model="mine.py", **options), ranks)
