"""GPU data from NVML: the only importer of pynvml, with one gate for every call into it.

torch has functions that ask the same library, but for one value of one GPU that torch may use, and they raise
where a driver lacks it: here all values of all GPUs come once a second, each optional.

The bindings come from the package ``nvidia-ml-py``; the driver brings the library itself. NVML's own
reference gives the meaning, the units and the error codes of each call:
https://docs.nvidia.com/deploy/nvml-api/
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, TypeVar

from amptui.records.samples import GpuSample, decode_clocks_event_reasons

_Value = TypeVar("_Value")

_MEMORY_VERSION_2 = 0x02000028  # nvmlMemory_v2: version 2 of a struct of 40 bytes
_GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU
_SM_CLOCK = 1  # NVML_CLOCK_SM
_GONE = frozenset({15, 16, 28})
"""The codes after which a GPU no longer answers: lost, needs a reset, not found."""

Absence = Literal["", "absent", "refused"]
"""Why there is no data: no NVIDIA GPU or no NVML, or there is a driver that does not let us in; empty where
there is some."""

_ABSENT = frozenset({9, 12, 28})
"""The codes of a machine without an NVIDIA GPU: driver not loaded, library not found, no GPU listed."""

_START_FAILURES = {
    4: "no GPU data: no permission to use NVML",
    9: "no NVIDIA GPU: driver not loaded",
    12: "no NVIDIA GPU: NVML not found",
    13: "no GPU data: the NVIDIA driver is too old",
    18: "no GPU data: NVIDIA driver and library versions differ; reboot or reload the driver",
    28: "no NVIDIA GPU: NVML lists none",
}


class NullProbe:
    """A source of GPU data: of none, and ``note`` and ``absence`` say why.

    None of its methods raises: what cannot be measured is None.
    """

    def __init__(self, note: str, absence: Absence = "absent") -> None:
        self.note = note
        """Why GPUs or some of their data were missing in the last sample, in one line; else ``""``."""
        self.absence = absence

    def sample(self) -> tuple[GpuSample, ...]:
        """One sample of every GPU. It may take as long as the driver does; one thread calls it."""
        return ()

    def close(self) -> None:
        """Release the driver's library; the probe must not be used afterwards."""


def open_probe(uuid: str | None = None) -> NullProbe:
    """NVML's probe, or a plain `NullProbe` that says why there is none; may block while the driver starts.

    ``uuid``: that of the only GPU, or MIG instance of one, to sample, as torch or NVML tells it. A
    plain `NullProbe` is final: nobody installs a driver under a running program.
    """
    try:
        import pynvml
    except ImportError:
        return NullProbe("no GPU data: nvidia-ml-py is not installed")
    gate = _Gate(pynvml)
    started = gate.ask("nvmlInit")
    if isinstance(started, _Refusal):
        note = _START_FAILURES.get(started.code, f"no GPU data: NVML: {started.words}")
        return NullProbe(note, "absent" if started.code in _ABSENT else "refused")
    probe = NvmlProbe(gate, uuid)
    if probe.gpu_count == 0:
        probe.close()
        return NullProbe(probe.note or _START_FAILURES[28])
    return probe


class NvmlProbe(NullProbe):
    """Every GPU that NVML lists, each followed by its MIG instances; created by `open_probe`.

    A lost GPU stays listed without data. One whose UUID is unknown is named by its index: ``GPU 0``.
    """

    def __init__(self, gate: "_Gate", uuid: str | None = None) -> None:
        super().__init__("", "")
        self._gate = gate
        count = self._gate.ask("nvmlDeviceGetCount")
        if isinstance(count, _Refusal):
            self.note = f"no GPU data: NVML's list of GPUs: {count.words}"
            count = 0
        self._gpus: list[_Gpu] = []
        for index in range(count):
            handle = self._gate.ask("nvmlDeviceGetHandleByIndex", index)
            gpu = _Gpu(f"GPU {index}", self._gate, handle)
            self._gpus += [gpu, *gpu.mig_instances()]
        if uuid is not None:
            self._gpus = [gpu for gpu in self._gpus if gpu.has_uuid(uuid)]
        self.gpu_count = len(self._gpus)
        """The number of GPUs and MIG instances sampled."""

    def sample(self) -> tuple[GpuSample, ...]:
        """One sample of every GPU and MIG instance, in NVML's order."""
        samples = []
        troubles: dict[str, list[str]] = {}
        for gpu in self._gpus:
            sample, trouble = gpu.look()
            samples.append(sample)
            troubles.setdefault(trouble, []).append(gpu.label)
        # Eight GPUs with the same problem make one short line.
        self.note = "; ".join(f"{', '.join(gpus)}{trouble}" for trouble, gpus in troubles.items() if trouble)
        return tuple(samples)

    def close(self) -> None:
        """Shut NVML down; errors are ignored."""
        self._gate.ask("nvmlShutdown")


@dataclass(frozen=True, slots=True)
class _Refusal:
    """NVML's answer if it returns an error."""

    code: int
    words: str


class _Gate:
    """The only access to NVML: a call returns a value or a `_Refusal`, and never raises."""

    def __init__(self, pynvml: ModuleType) -> None:
        self._pynvml = pynvml

    def ask(self, call: str, *arguments: object) -> Any:
        """The answer of the bindings' function ``call``."""
        try:
            return getattr(self._pynvml, call)(*arguments)
        except self._pynvml.NVMLError as error:
            return _Refusal(error.value, str(error).lower().replace("gpu", "GPU"))
        except UnicodeDecodeError:
            return _Refusal(999, "not readable")  # a name in another encoding than the bindings expect


class _Gpu:
    """One GPU or MIG instance."""

    def __init__(self, label: str, gate: _Gate, handle: object, *, is_mig_instance: bool = False) -> None:
        self.label = label
        self._gate = gate
        self._handle = handle
        self._is_mig_instance = is_mig_instance
        self._begin_look()
        self._uuid = self._read("UUID", str, "nvmlDeviceGetUUID")
        self._name = self._read("name", str, "nvmlDeviceGetName")

    def has_uuid(self, uuid: str) -> bool:
        """Whether this is the one of that name; before a MIG instance's torch writes another prefix."""
        return self._uuid is not None and self._uuid.partition("-")[2] == uuid.partition("-")[2]

    def mig_instances(self) -> "list[_Gpu]":
        """The MIG instances that this process may see; most GPUs have none.

        A container with only an instance may not read its GPU's memory, so the instance is listed too.
        """
        if isinstance(self._handle, _Refusal):
            return []
        mode = self._gate.ask("nvmlDeviceGetMigMode", self._handle)
        if isinstance(mode, _Refusal) or mode[0] == 0:
            return []
        most = self._gate.ask("nvmlDeviceGetMaxMigDeviceCount", self._handle)
        slots = [] if isinstance(most, _Refusal) else range(most)
        handles = {
            slot: self._gate.ask("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, slot) for slot in slots
        }
        return [
            _Gpu(f"{self.label} MIG {slot}", self._gate, handle, is_mig_instance=True)
            for slot, handle in handles.items()
            if not isinstance(handle, _Refusal)  # slots may be empty
        ]

    def look(self) -> tuple[GpuSample, str]:
        """A sample of the GPU, and what is missing and why, to follow its label.

        Of a MIG instance NVML tells the memory alone: the sensors belong to the whole GPU.
        """
        self._begin_look()
        # Version 2 of the call does not count what the driver keeps for itself as used; version 1 does.
        call = "nvmlDeviceGetMemoryInfo", _MEMORY_VERSION_2
        memory = self._read("memory", lambda it: (it.used, it.total), *call)
        figures: dict[str, Any] = {}
        if not self._is_mig_instance:
            figures = {field: self._read(*reading) for field, reading in _FIGURES.items()}
        figures["memory_used_bytes"], figures["memory_total_bytes"] = memory or (None, None)
        if self._gone:
            figures, trouble = {}, f": {self._gone}"
        else:
            parts = [f"{', '.join(names)} ({words})" for words, names in self._refused.items()]
            trouble = f" without {', '.join(parts)}" if parts else ""
        return GpuSample(uuid=self._uuid or self.label, name=self._name, **figures), trouble

    def _begin_look(self) -> None:
        self._gone = self._handle.words if isinstance(self._handle, _Refusal) else ""
        """Why the GPU no longer answers; it is then not asked again in this look."""
        self._refused: dict[str, list[str]] = {}
        """Missing figures by reason."""

    def _read(
        self, figure: str, convert: Callable[[Any], _Value], call: str, *arguments: int
    ) -> _Value | None:
        """The answer to ``call``; None if it is refused."""
        if self._gone:
            return None
        answer = self._gate.ask(call, self._handle, *arguments)
        if not isinstance(answer, _Refusal):
            return convert(answer)
        if answer.code in _GONE:
            self._gone = answer.words
        self._refused.setdefault(answer.words, []).append(figure)
        return None


_FIGURES: Mapping[str, tuple[Any, ...]] = {
    # The share of NVML's last sample period (1/6 s to 1 s) in which any kernel ran.
    "utilization_percent": (
        "utilization",
        lambda rates: float(rates.gpu),
        "nvmlDeviceGetUtilizationRates",
    ),
    # The mean over one second on Ampere and newer (GA100 apart), the moment's on older GPUs.
    "power_watts": ("power", lambda milliwatts: milliwatts / 1000, "nvmlDeviceGetPowerUsage"),
    # GPUs before Volta do not count it.
    "energy_joules": (
        "energy",
        lambda millijoules: millijoules / 1000,
        "nvmlDeviceGetTotalEnergyConsumption",
    ),
    "temperature_c": ("temperature", float, "nvmlDeviceGetTemperature", _GPU_SENSOR),
    "sm_clock_mhz": ("SM clock", float, "nvmlDeviceGetClockInfo", _SM_CLOCK),
    "clocks_event_reasons": (
        "clocks event reasons",
        decode_clocks_event_reasons,
        "nvmlDeviceGetCurrentClocksThrottleReasons",  # its name of today is missing in drivers before 535
    ),
}
"""Fields of a sample: what it is called, how an answer becomes it, and the call."""
