"""A small model and data for a Hugging Face Trainer, and the handwritten loop that it stands for."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments, get_linear_schedule_with_warmup

from tests.observed import AUTOCAST

BATCH, WIDTH = 4, 8

OVERFLOWS = (7, 12)
"""Steps, counted from 1, that overflow float16."""


class Net(nn.Module):
    """Returns its loss, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, WIDTH))

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        outputs = self.layers(inputs)
        if labels is None:
            return {"logits": outputs}
        return {"loss": nn.functional.mse_loss(outputs.float(), labels), "logits": outputs}


def samples(steps: int, accumulate: int) -> list[dict[str, Tensor]]:
    """Those of so many steps, in order."""
    generator = torch.Generator().manual_seed(1)
    entries_found = []
    for step in range(1, steps + 1):
        for _ in range(BATCH * accumulate):
            inputs = torch.randn(WIDTH, generator=generator)
            entries_found.append({"inputs": inputs * (1e6 if step in OVERFLOWS else 1.0), "labels": inputs})
    return entries_found


class InOrder(Trainer):  # type: ignore[misc] # transformers counts as untyped
    """Takes the samples as they come."""

    def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def new_trainer(folder: Path, *, steps: int = 20, **options: Any) -> Trainer:
    """One that knows nothing of those before it; ``options`` are TrainingArguments."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    defaults = {
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": 1,
        "use_cpu": True,
        "report_to": [],
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "learning_rate": 1e-3,
    }
    args = TrainingArguments(str(folder), **{**defaults, **options})
    torch.manual_seed(0)
    train = samples(steps, args.gradient_accumulation_steps)
    return InOrder(Net(), args, train_dataset=train, eval_dataset=samples(2, 1))


def handwritten(
    switches: dict[int, str], *, steps: int = 20, accumulate: int = 1, fused: bool
) -> tuple[nn.Module, dict[str, Any], list[float]]:
    """What the Trainer does, in precisions that switch; returns model, scaler's state and losses."""
    torch.manual_seed(0)
    model = Net()
    torch.manual_seed(42)  # the Trainer's own seed, as train() begins
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=fused)
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, steps)
    scaler, precision, losses = torch.amp.GradScaler("cpu"), "fp32", []
    loader: Any = DataLoader(samples(steps, accumulate), batch_size=BATCH)  # type: ignore[arg-type]
    batches = [(batch["inputs"], batch["labels"]) for batch in loader]
    for step in range(1, steps + 1):
        precision = switches.get(step, precision)
        scales, dtype, total = precision == "fp16", AUTOCAST.get(precision), 0.0
        for inputs, labels in batches[(step - 1) * accumulate : step * accumulate]:
            with nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype):
                loss = model(inputs, labels)["loss"]
            loss = loss / accumulate
            (scaler.scale(loss) if scales else loss).backward()
            total += loss.item()
        losses.append(total)
        before = scaler.get_scale()
        if scales:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scales:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        # Of a fused optimizer's skipped step Accelerate does not know, and the scheduler goes on.
        if fused or scaler.get_scale() >= before:
            scheduler.step()
        optimizer.zero_grad()
    return model, scaler.state_dict(), losses


class EachStep(TrainerCallback):  # type: ignore[misc] # transformers counts as untyped
    """Calls ``during`` in each step, counted from 1, and keeps what Accelerate says of it."""

    def __init__(self, during: Callable[[int], object] = lambda _step: None) -> None:
        self.during = during
        self.said_skipped: list[bool] = []

    def on_pre_optimizer_step(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        self.during(state.global_step + 1)

    def on_optimizer_step(
        self, _args: Any, _state: Any, _control: Any, *, optimizer: Any, **_kwargs: Any
    ) -> None:
        self.said_skipped.append(optimizer.step_was_skipped)


def bits(model: nn.Module) -> list[Any]:
    """Weights and random numbers."""
    return [[p.tolist() for p in model.parameters()], torch.get_rng_state().tolist()]


def logged(trainer: Trainer) -> list[dict[str, float]]:
    """What the Trainer logged, without speeds."""
    return [
        {name: value for name, value in entry.items() if "_runtime" not in name and "_per_second" not in name}
        for entry in trainer.state.log_history
    ]
