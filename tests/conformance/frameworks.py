"""The watchers of frameworks, each with the training that its users would write."""

import logging
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conformance.situations import EPOCHS, SAMPLES, Situation, Training
from tests.conformance.watchers import Watcher, precision

LIGHTNING = "lightning.pytorch"

NAMES: Any = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
"""What Lightning and Fabric call a precision."""

Options = Mapping[str, Any] | None
"""What to watch with; None: the framework alone."""

State = dict[str, Any] | None
"""A scaler's, if amptui has one."""


class Framework(Watcher):
    tier = "ci"
    growth_interval = 2000
    refuses: Mapping[str, str] = {"x-ray": "unavailable"}

    def train(self, training: Training, runs: Path) -> State:
        return self.run(training, runs.parent, {})

    def run(self, training: Training, folder: Path, watch: Options, **options: Any) -> State:
        """Train, and continue where a ``checkpoint=`` was saved if there is one."""
        raise NotImplementedError


class Lightning(Framework):
    name, package = "Lightning", "lightning"
    cannot: Mapping[str, str] = {"closure": "LBFGS has a test of its own: its Trainer counts no closures"}

    def run(self, training: Training, folder: Path, watch: Options, **options: Any) -> State:
        from amptui.lightning import PrecisionMonitor

        callbacks = [] if watch is None else [PrecisionMonitor(**watch)]
        package, checkpoint = options.pop("package", LIGHTNING), options.pop("checkpoint", None)
        module = options.pop("module", partial(self.module, package=package))(training)
        trainer = self.trainer(training.situation, package, callbacks=callbacks, **options)
        self.fit(trainer, module, ckpt_path=checkpoint)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        return None if watch is None or scaler is None else scaler.state_dict()

    @staticmethod
    def trainer(situation: Situation, package: str = LIGHTNING, **options: Any) -> Any:
        """Lightning replaces "16-mixed" on a CPU, unless it is told so by a plugin."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of packages that Lightning imports
            lightning = pytest.importorskip(package)
            from lightning.pytorch.plugins import MixedPrecision

        logging.getLogger(package).setLevel(logging.ERROR)
        name = NAMES[situation.precision(1)]
        chosen: dict[str, Any] = {"precision": name}
        if name == "16-mixed":
            chosen = {"plugins": [MixedPrecision(name, "cpu", scaler=torch.amp.GradScaler("cpu"))]}
        quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        return lightning.Trainer(
            **{
                **dict.fromkeys(quiet, False),
                "accelerator": "cpu",
                "max_epochs": EPOCHS,
                "accumulate_grad_batches": situation.accumulate,
                "gradient_clip_val": situation.clip_norm,
                **chosen,
                **options,
            }
        )

    @staticmethod
    def fit(trainer: Any, module: Any, **options: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's advice
            trainer.fit(module, module.training_.batches, **options)

    @staticmethod
    def module(training: Training, package: str = LIGHTNING) -> Any:

        class Module(pytest.importorskip(package).LightningModule):  # type: ignore[misc] # untyped
            def __init__(self) -> None:
                super().__init__()
                self.training_, self.net = training, training.model

            def training_step(self, batch: Any, _: int) -> Tensor:
                return training.loss(batch)

            def on_train_batch_end(self, _outputs: Any, _batch: Any, index: int) -> None:
                if training.situation.averages and (index + 1) % training.situation.accumulate == 0:
                    training.average.update_parameters(training.model)

            def configure_optimizers(self) -> Any:
                schedule = {"scheduler": training.scheduler, "interval": "step"}
                return {"optimizer": training.optimizer, "lr_scheduler": schedule}

        return Module()


class Fabric(Framework):
    name, package = "Fabric", "lightning"
    growth_interval = 4
    refuses: Mapping[str, str] = {"x-ray": "unavailable", "checkpoint": "unavailable"}

    @staticmethod
    def counts_samples(situation: Situation) -> bool:
        """Not those of a first step by a closure: the run begins within it."""
        return not situation.closure

    def run(self, training: Training, folder: Path, watch: Options, **options: Any) -> State:
        name = NAMES[training.situation.precision(1)]
        if watch is None:
            self.loop(training, None, precision=name, **options)
            return None
        scaler = torch.amp.GradScaler("cpu", growth_interval=self.growth_interval)
        plugin = self.plugin(name, **{"scaler": scaler, **watch})
        with plugin.monitor:
            self.loop(training, plugin, **options)
        state: dict[str, Any] = plugin.state_dict()
        return state

    @staticmethod
    def plugin(precision: Any = "32-true", **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of packages that Lightning imports
            from amptui import fabric

        return fabric.Precision(precision, **options)

    @staticmethod
    def loop(training: Training, plugin: Any, **options: Any) -> None:
        """As people write it; with the monitor of ours, if there is a ``plugin``."""
        from lightning.fabric import Fabric as RealFabric

        situation, monitor = training.situation, getattr(plugin, "monitor", None)
        plugins = [] if plugin is None else [plugin]
        fabric = RealFabric(**{"accelerator": "cpu", "devices": 1, "plugins": plugins, **options})
        fabric.launch()
        model, optimizer = fabric.setup(training.model, training.optimizer)
        for _ in range(EPOCHS) if monitor is None else monitor.epochs(EPOCHS):
            batches = training.batches if monitor is None else monitor.steps(training.batches)
            for number, batch in enumerate(batches, 1):

                def one_pass(batch: Any = batch) -> Tensor:
                    optimizer.zero_grad() if situation.closure else None
                    loss = training.loss(batch, model) / situation.accumulate
                    fabric.backward(loss)
                    return loss

                if situation.closure:
                    optimizer.step(one_pass)
                else:
                    one_pass()
                    if number % situation.accumulate:
                        continue
                    if situation.clip_norm is not None:
                        norm = situation.clip_norm
                        fabric.clip_gradients(model, optimizer, max_norm=norm, error_if_nonfinite=False)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=not situation.zeroes)
                training.after_step()


class Accelerate(Framework):
    name, package = "Accelerate", "accelerate"

    def __init__(self, *, steps: bool = True) -> None:
        self.steps = steps
        """Whether the loop uses the monitor's ``epochs()`` and ``steps()``."""

    @staticmethod
    def pauses_schedule(situation: Situation) -> bool:
        """Accelerate does not see that the step of a fused optimizer was skipped."""
        return not situation.fused

    def run(self, training: Training, folder: Path, watch: Options, **options: Any) -> State:
        import amptui.accelerate

        first = precision(training.situation)
        own = "bf16" if first == "bf16" else "no"
        accelerator = self.accelerator(training.situation, mixed_precision=own)
        if watch is None:
            self.loop(training, accelerator, **options)
            return None
        with amptui.accelerate.watch(accelerator, **{"precision": first, **watch}) as monitor:
            self.loop(training, accelerator, monitor if self.steps else None, **options)
        return monitor.amp.scaler.state_dict() if monitor.has_amp else None

    @staticmethod
    def accelerator(situation: Situation, **options: Any) -> Any:
        """One that knows nothing of those before it."""
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        return Accelerator(cpu=True, gradient_accumulation_steps=situation.accumulate, **options)

    @staticmethod
    def loop(
        training: Training, accelerator: Any, monitor: Any = None, checkpoint: Path | None = None
    ) -> None:
        """As people write it; ``monitor``: ours, ``checkpoint``: one of two epochs."""
        situation = training.situation
        model, optimizer, scheduler = accelerator.prepare(
            training.model, training.optimizer, training.scheduler
        )
        epochs = range(EPOCHS)
        if checkpoint is not None:
            accelerator.load_state(str(checkpoint))
            epochs = range(2, EPOCHS)
        for _ in epochs if monitor is None else monitor.epochs(epochs):
            for batch in training.batches if monitor is None else monitor.steps(training.batches):
                with accelerator.accumulate(model):

                    def one_pass(batch: Any = batch) -> Tensor:
                        optimizer.zero_grad() if situation.closure else None
                        loss = training.loss(batch, model)
                        accelerator.backward(loss)
                        return loss

                    if situation.closure:
                        optimizer.step(one_pass)
                        continue
                    one_pass()
                    if accelerator.sync_gradients and situation.clip_norm is not None:
                        accelerator.clip_grad_norm_(model.parameters(), situation.clip_norm)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad(set_to_none=not situation.zeroes)
                    if situation.averages and accelerator.sync_gradients:
                        training.average.update_parameters(training.model)


def as_on_a_gpu(accelerator: Any) -> None:
    """Give it on a CPU what it has there for fp16: autocast to float16, and a scaler."""
    accelerator.native_amp, accelerator.scaler = True, torch.amp.GradScaler("cpu")


class ReturnsLoss(nn.Module):
    """A model as those of transformers: it computes its loss."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.net, self._training = training.model, training

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self._training.loss((inputs, labels)), "logits": torch.zeros(len(inputs), 4)}


class HuggingFace(Framework):
    name, package = "Hugging Face", "transformers"
    cannot: Mapping[str, str] = {"closure": "its Trainer passes no closure to the optimizer"}
    pauses_schedule = staticmethod(Accelerate.pauses_schedule)

    def run(self, training: Training, folder: Path, watch: Options, **options: Any) -> State:
        import amptui.huggingface

        first, checkpoint = precision(training.situation), options.pop("checkpoint", None)
        trainer = self.trainer(training, folder, bf16=first == "bf16", **options)
        if watch is None:
            trainer.train(resume_from_checkpoint=checkpoint)
            return None
        with amptui.huggingface.watch(trainer, **{"precision": first, **watch}) as monitor:
            trainer.train(resume_from_checkpoint=checkpoint)
        return monitor.amp.scaler.state_dict() if monitor.has_amp else None

    @staticmethod
    def trainer(training: Training, folder: Path, **options: Any) -> Any:
        """One that takes the situation's batches as they come, and can evaluate the first."""
        from accelerate.state import AcceleratorState, GradientState
        from transformers import Trainer, TrainerCallback, TrainingArguments

        class InOrder(Trainer):  # type: ignore[misc] # transformers counts as untyped
            def get_train_dataloader(self) -> Any:
                batches = training.batches

                class Named:
                    def __len__(self) -> int:
                        return len(batches)

                    def __iter__(self) -> Any:
                        return ({"inputs": inputs, "labels": labels} for inputs, labels in batches)

                return Named()

        class Averages(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, *_: Any, **__: Any) -> None:
                if training.situation.averages:
                    training.average.update_parameters(training.model)

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        situation, samples = training.situation, zip(*next(iter(training.batches)), strict=True)
        arguments = {
            "per_device_train_batch_size": SAMPLES,
            "num_train_epochs": EPOCHS,
            "gradient_accumulation_steps": situation.accumulate,
            "max_grad_norm": situation.clip_norm or 0.0,
            "use_cpu": True,
            "report_to": [],
            "logging_steps": 1,
            "save_strategy": "no",
            "disable_tqdm": True,
        }
        return InOrder(
            ReturnsLoss(training),
            TrainingArguments(str(folder), **{**arguments, **options}),
            eval_dataset=[{"inputs": inputs, "labels": label} for inputs, label in samples],
            callbacks=[Averages()],
            optimizers=(training.optimizer, training.scheduler),
        )


FRAMEWORKS: list[Framework] = [Lightning(), Fabric(), Accelerate(), HuggingFace()]
