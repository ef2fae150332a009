"""Watches a Hugging Face Trainer and switches its precision: accelerator, callbacks, checkpoints."""

import functools
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from numbers import Real
from typing import Any

from transformers import Trainer, TrainerCallback

from amptui.accelerate import AcceleratorMonitor
from amptui.base.prompt import complain
from amptui.guest.amp_monitor import AmpName, PrecisionName
from amptui.guest.framework import harmless_event
from amptui.guest.monitor import samples_of
from amptui.recipe.request import Fp8Recipe

_STATE = "amptui"
"""Where ``trainer_state.json`` has the scaler's state, among the states of callbacks."""

_NO_XRAY = "it runs the forward pass again, for which the Trainer has no function"

_NOT_LOGGED = frozenset({"loss", "learning_rate", "epoch", "step", "total_flos", "num_input_tokens_seen"})
"""What the Trainer logs and the screen shows otherwise: ``loss`` as ``logged_loss``."""

_SPEEDS = ("_runtime", "_per_second", "_preparation_time", "_compilation_time")


def watch(
    trainer: Trainer,
    *,
    precision: PrecisionName | None = None,
    amp: AmpName | None = None,
    fp8_recipe: Fp8Recipe | None = None,
) -> "TrainerMonitor":
    """Watch ``trainer`` and switch its precision; call it once, before ``train()``.

    It starts in ``precision``, by default in that of its TrainingArguments; ``amp`` is what AMP means, by
    default their ``fp16`` or ``bf16``, or else ``fp16`` on a GPU and ``bf16`` on a CPU, and
    ``fp8_recipe`` is as in :func:`amptui.watch`. The key ``s`` saves a checkpoint as the Trainer does, ``q``
    ends the training as a callback would.

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
    return TrainerMonitor(trainer, precision=precision, amp=amp, fp8_recipe=fp8_recipe)


class TrainerMonitor(AcceleratorMonitor, TrainerCallback):  # type: ignore[misc] # transformers counts as untyped
    """The run of what a Trainer trains, from its ``train()`` to the end of the script, and its callback."""

    _no_xray = _NO_XRAY
    _ends_steps = True

    def __init__(
        self, trainer: Trainer, *, precision: str | None, amp: str | None, fp8_recipe: str | None
    ) -> None:
        self._trainer = trainer
        self._validating = self._unfinished_epoch = False
        super().__init__(trainer.accelerator, precision=precision, amp=amp, fp8_recipe=fp8_recipe)
        if not trainer.is_world_process_zero():
            return
        if trainer.args.n_gpu > 1:
            complain("cannot watch this script: nn.DataParallel copies the model for each GPU")
            return
        trainer.add_callback(self)
        if hasattr(trainer, "get_batch_samples"):
            trainer.get_batch_samples = functools.partial(self._get_batches, trainer.get_batch_samples)

    def _get_batches(self, get_batch_samples: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The batches of the next step; measures the time to load them and counts their samples."""
        start = time.perf_counter()
        result = get_batch_samples(*args, **kwargs)
        self._take_batches(start, time.perf_counter() - start, result)
        return result

    @harmless_event
    def _take_batches(self, start: float, seconds: float, result: Any) -> None:
        if self._run is not None:
            self._run.loop.take_batch(start, seconds, sum(map(samples_of, result[0])))

    # ------------------------------------------------------------------------------ the scaler

    @property
    def _scaler_state(self) -> dict[str, Any] | None:
        """What ``scaler.pt`` would hold; None if the Trainer itself saves that."""
        if self._amp is None or self._accelerator.scaler is not None:
            return None
        return self._amp.scaler.state_dict()

    def _export_scaler(self) -> None:
        """Put the scaler's state into the Trainer's, which a checkpoint is about to hold."""
        state = self._scaler_state
        if state is not None:
            self._trainer.state.stateful_callbacks[_STATE] = state

    def give_up(self, error: Exception) -> None:
        super().give_up(error)
        self.failed = False  # the Trainer goes on with our scaler, whose state its checkpoints hold

    def _save(self) -> object:
        """Let the Trainer save a checkpoint; return where."""
        trainer, control = self._trainer, self._trainer.control
        was_due = control.should_save
        self._export_scaler()
        trainer._save_checkpoint(trainer.model, getattr(trainer, "_trial", None))
        trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, control)
        trainer.control.should_save = was_due
        return os.path.join(trainer.args.output_dir, f"checkpoint-{trainer.state.global_step}")  # noqa: PTH118

    # ------------------------------------------------------------------- what the Trainer calls

    @harmless_event
    def on_train_begin(self, args: Any, state: Any, _control: Any, **kwargs: Any) -> None:
        """Continue where a checkpoint was saved, and tell how long the training is."""
        scaler_state = state.stateful_callbacks.get(_STATE)
        if isinstance(scaler_state, dict) and self._amp is not None and self._accelerator.scaler is None:
            self._amp.scaler.load_state_dict(scaler_state)
        if self._trainer.accelerator is not self._accelerator:
            complain("cannot watch this training: the Trainer has made another accelerator")
        elif (run := self._run) is not None:
            run.stops_when_asked = args.world_size == 1
            if run.first.step == 0:
                run.first.step = state.global_step
                run.first.epoch = int(state.epoch or 0) + 1
            run.length.total_steps = state.max_steps
            run.length.total_epochs = math.ceil(state.num_train_epochs)
            loader: Any = kwargs.get("train_dataloader")
            with suppress(TypeError):  # a stream of samples
                batches = len(loader)
                run.length.steps_per_epoch = math.ceil(batches / args.gradient_accumulation_steps)
            self.log()  # from the first step on, each one waits for what is logged with it

    @harmless_event
    def on_epoch_begin(self, _args: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
        """What the epoch before logged and evaluated at its end is told."""
        self.end_step()
        self._end_epoch()

    @harmless_event
    def on_step_end(self, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """The Trainer has counted the step; what it logs now belongs to it."""
        if not (control.should_log or _ends_epoch(state)):
            self.end_step()
        self._stop_if_asked(control)
        if control.should_save:
            self._export_scaler()

    @harmless_event
    def on_log(self, _args: Any, _state: Any, control: Any, *, logs: Any, **_kwargs: Any) -> None:
        """Show what the Trainer logged beside what was computed."""
        if not self._validating and logs and "train_runtime" not in logs:
            values = {name: value for name, value in _numbers(logs).items() if name not in _NOT_LOGGED}
            if isinstance(logs.get("loss"), Real):
                values["logged_loss"] = float(logs["loss"])
            self.log(**values)
            self.end_step()
            self._stop_if_asked(control)

    @harmless_event
    def on_prediction_step(self, _args: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
        """An evaluation runs."""
        if not self._validating and self._run is not None:
            self._validating = True
            self._run.first.begin_validation()

    @harmless_event
    def on_evaluate(self, _args: Any, _state: Any, _control: Any, *, metrics: Any, **_kwargs: Any) -> None:
        """Show its results."""
        self._finish_validation(metrics, "eval_")
        self._export_scaler()

    @harmless_event
    def on_predict(self, _args: Any, _state: Any, _control: Any, *, metrics: Any, **_kwargs: Any) -> None:
        """Show its results."""
        self._finish_validation(metrics, "test_")

    @harmless_event
    def on_epoch_end(self, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """The epoch's own logs, evaluation and checkpoint follow."""
        self._unfinished_epoch = _ends_epoch(state)
        if control.should_save:
            self._export_scaler()

    @harmless_event
    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
        """What the script does now, it does itself."""
        self.end_step()
        self._end_epoch()
        if self._run is not None:
            self._run.stops_when_asked = False

    def _stop_if_asked(self, control: Any) -> None:
        if self.should_stop:
            control.should_training_stop = True

    def _end_epoch(self) -> None:
        if self._unfinished_epoch:
            self._unfinished_epoch = False
            self.finish_epoch()

    def _finish_validation(self, metrics: Any, prefix: str) -> None:
        """Show a metric by its name without the prefix; how fast the evaluation ran is left out."""
        if self._run is None or not self._validating:
            return
        self._validating = False
        results = {
            name: value for name, value in _numbers(metrics or {}).items() if not name.endswith(_SPEEDS)
        }
        self.log(**{name.removeprefix(prefix): value for name, value in results.items() if name != "epoch"})
        self._run.first.finish_validation()


def _ends_epoch(state: Any) -> bool:
    return float(state.epoch or 0).is_integer()


def _numbers(values: Mapping[str, object]) -> dict[str, float]:
    """Those of ``values`` that are numbers."""
    return {name: float(value) for name, value in values.items() if isinstance(value, Real)}
