"""Watches a Hugging Face Trainer and switches its precision: accelerator, callbacks, checkpoints."""

import math
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from numbers import Real
from typing import Any

from transformers import Trainer, TrainerCallback

from amptui.accelerate import AcceleratorMonitor
from amptui.base.prompt import complain
from amptui.guest.amp_monitor import AmpName
from amptui.guest.framework import FirstPrecision
from amptui.loops.script.guard import harmless

_NOT_LOGGED = frozenset({"learning_rate", "epoch", "step", "total_flos", "num_input_tokens_seen"})
"""What the Trainer logs and the screen shows otherwise."""

_SPEEDS = ("_runtime", "_per_second", "_preparation_time", "_compilation_time")


def watch(
    trainer: Trainer,
    *,
    precision: FirstPrecision | None = None,
    amp: AmpName | None = None,
) -> "TrainerMonitor":
    """Watch ``trainer`` and switch its precision; call it once, before ``train()``.

    It starts in ``precision``, by default in that of its TrainingArguments; ``amp`` is what AMP means, by
    default their ``fp16`` or ``bf16``, or else ``fp16`` on a GPU and ``bf16`` on a CPU. The key ``s`` saves a
    checkpoint as the Trainer does, ``q`` ends the training as a callback would.

    Several processes, Accelerate's own fp8 and weights other than float32 are only observed, and only in the
    main process. DeepSpeed, FSDP and ``nn.DataParallel`` are not watched.

    Raises TypeError for arguments of other kinds, RuntimeError once training has begun, and ValueError for a
    precision that the device does not support. If anything else of amptui's own fails, it writes one line to
    standard error and the training continues in the current precision.
    """
    if not isinstance(trainer, Trainer):
        raise TypeError(f"trainer must be a transformers.Trainer, not {type(trainer).__name__}")
    if trainer.accelerator._models or trainer.accelerator._optimizers:
        raise RuntimeError("call amptui.huggingface.watch() before trainer.train() and trainer.evaluate()")
    return TrainerMonitor(trainer, precision=precision, amp=amp)


class TrainerMonitor(AcceleratorMonitor, TrainerCallback):  # type: ignore[misc] # transformers counts as untyped
    """The run of what a Trainer trains, from its ``train()`` to the end of the script, and its callback."""

    framework = "the Trainer"
    _ends_steps = True

    def __init__(self, trainer: Trainer, **options: Any) -> None:
        self._trainer = trainer
        self._validating = self._unfinished_epoch = False
        super().__init__(trainer.accelerator, **options)
        if self.active:
            trainer.add_callback(self)
            self.replace(trainer, "get_batch_samples", self._get_batches)

    def _why_unwatched(self) -> str:
        copies = "nn.DataParallel copies the model for each GPU" if self._trainer.args.n_gpu > 1 else ""
        return copies or super()._why_unwatched()

    def _keep_scaler(self) -> None:
        """The Trainer's checkpoints are no saved states of its accelerator's; its own file needs a scaler."""
        self.replace(self._trainer, "_save_scaler", self._save_scaler)
        self.replace(self._trainer, "_load_scaler", self._load_scaler)

    def _get_batches(self, get_batch_samples: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The batches of the next step."""
        start = time.perf_counter()
        result = get_batch_samples(*args, **kwargs)
        self.take_batches(start, time.perf_counter() - start, result[0])
        return result

    def _save(self) -> object:
        """Let the Trainer save a checkpoint; return where."""
        trainer, control = self._trainer, self._trainer.control
        was_due = control.should_save
        trainer._save_checkpoint(trainer.model, getattr(trainer, "_trial", None))
        trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, control)
        trainer.control.should_save = was_due
        return os.path.join(trainer.args.output_dir, f"checkpoint-{trainer.state.global_step}")  # noqa: PTH118

    # ------------------------------------------------------------------- what the Trainer calls

    @harmless
    def on_train_begin(self, args: Any, state: Any, _control: Any, /, **kwargs: Any) -> None:
        """Tell how long the training is, and where a checkpoint lets it begin."""
        if self._trainer.accelerator is not self._accelerator:
            complain("cannot watch this training: the Trainer has made another accelerator")
            return
        steps_per_epoch, loader = None, kwargs.get("train_dataloader")
        with suppress(TypeError):  # a stream of samples
            steps_per_epoch = math.ceil(len(loader) / args.gradient_accumulation_steps)  # type: ignore[arg-type]
        self.begin(
            step=state.global_step,
            epoch=int(state.epoch or 0) + 1,
            total_steps=state.max_steps,
            total_epochs=math.ceil(state.num_train_epochs),
            steps_per_epoch=steps_per_epoch,
        )
        self.log()  # from the first step on, each one waits for what is logged with it

    @harmless
    def on_epoch_begin(self, *_args: Any, **_kwargs: Any) -> None:
        """What the epoch before logged and evaluated at its end is told."""
        self.end_step()
        if self._unfinished_epoch:
            self._unfinished_epoch = False
            self.finish_epoch()

    def on_step_end(self, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """The Trainer has counted the step; what it logs now belongs to it."""
        if not (control.should_log or _ends_epoch(state)):
            self.end_step()
        self._stop_if_asked(control)

    @harmless
    def on_log(self, _args: Any, _state: Any, control: Any, /, *, logs: Any, **_kwargs: Any) -> None:
        """Show what the Trainer logged beside what was computed."""
        if self._validating or not logs or "train_runtime" in logs:
            return
        values = {name: value for name, value in _numbers(logs).items() if name not in _NOT_LOGGED}
        if "loss" in values:
            values["logged_loss"] = values.pop("loss")
        self.log(**values)
        self.end_step()
        self._stop_if_asked(control)

    @harmless
    def on_prediction_step(self, *_args: Any, **_kwargs: Any) -> None:
        """An evaluation runs."""
        if not self._validating and self._run is not None:
            self._validating = True
            self._run.first.begin_validation()

    @harmless
    def on_evaluate(self, _args: Any, _state: Any, _control: Any, /, *, metrics: Any, **_: Any) -> None:
        """Show a metric by its name without the prefix; how fast the evaluation ran is left out."""
        if self._validating:
            self._validating = False
            numbers = {re.sub("^(eval|test)_", "", name): value for name, value in _numbers(metrics).items()}
            shown = {name for name in numbers if not name.endswith(_SPEEDS)} - {"epoch"}
            self.finish_validation({name: numbers[name] for name in shown})

    on_predict = on_evaluate

    def on_epoch_end(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        """The epoch's own logs, evaluation and checkpoint follow."""
        self._unfinished_epoch = _ends_epoch(state)

    @harmless
    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """What the script does now, it does itself."""
        self.on_epoch_begin(*args, **kwargs)
        if self._run is not None:
            self._run.stops_when_asked = False

    def _stop_if_asked(self, control: Any) -> None:
        if self.should_stop:
            control.should_training_stop = True


def _ends_epoch(state: Any) -> bool:
    return float(state.epoch or 0).is_integer()


def _numbers(values: dict[str, object] | None) -> dict[str, float]:
    """Those of ``values`` that are numbers."""
    return {name: float(value) for name, value in (values or {}).items() if isinstance(value, Real)}
