"""What a run is, as names and values: model, data and device, then options, versions and environment."""

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from amptui.base import strictjson, units
from amptui.diagnosis.labels import data_label, size_words
from amptui.records.run import DataInfo, RunStarted


class Facts(NamedTuple):
    """Names and values under one title; empty values are left out."""

    title: str
    pairs: Sequence[tuple[str, str]]


def run_facts(run: RunStarted) -> Facts:
    """The run itself, without its name and duration, which the first record does not hold."""
    pairs = [
        ("started", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run.time))),
        ("model", f"{run.model}, {units.count(run.parameters)} parameters"),
        ("data", _data(run.data)),
        ("device", f"{run.device_name} ({run.device})"),
        ("ranks", size_words(run.world_size, run) if run.world_size > 1 else ""),
        ("batch", _samples(run.batch_size)),
        ("global batch", _samples(run.global_batch_size)),
        ("steps" if _ends_early(run) else "epochs", _epochs(run)),
        *((f"no {name}", reason) for name, reason in run.unsupported.items()),
    ]
    return Facts("run", [pair for pair in pairs if pair[1]])


def detail_facts(run: RunStarted) -> tuple[Facts, ...]:
    """Every option, version and device property that the run recorded."""
    return (
        _facts("settings", run.config, absent="not set"),
        _facts("versions", run.versions),
        _facts("hardware", run.hardware),
        _facts("environment", run.environment),
    )


def _facts(title: str, values: Mapping[str, Any], *, absent: str = units.NOT_AVAILABLE) -> Facts:
    return Facts(title, [(name, absent if value is None else _text(value)) for name, value in values.items()])


def _samples(size: int | None) -> str:
    return "" if size is None else f"{units.count(size)} samples"


def _ends_early(run: RunStarted) -> bool:
    """Whether it was asked for fewer steps than its epochs have."""
    steps = (run.steps_per_epoch or 0) * run.total_epochs
    return run.total_steps is not None and run.total_steps < steps


def _epochs(run: RunStarted) -> str:
    if _ends_early(run):
        return f"{units.count(run.total_steps)}, {units.count(run.steps_per_epoch)} an epoch"
    steps = "" if run.steps_per_epoch is None else f" of {units.count(run.steps_per_epoch)} steps"
    return f"{units.count(run.total_epochs or None)}{steps}"


def _data(data: DataInfo) -> str:
    samples = "" if data.samples is None else f", {units.count(data.samples)} samples"
    return f"{data_label(data)}{samples}"


def _text(value: object) -> str:
    """As a user writes it, with ``true`` and ``false`` as `--set` takes them."""
    plain = strictjson.plain(value)
    if isinstance(plain, list) and all(isinstance(word, str) for word in plain):
        return shlex.join(plain) or "none"
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
