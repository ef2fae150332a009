"""What a person asked to have trained, as the command line understood it; torch-free."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """One training as asked for; None leaves a choice to the experiment or to the device."""

    model: str
    """A catalogue name, ``path/to/file.py[:Class]`` or ``package.module:Class``."""
    precision: str | None = None
    """None is ``fp32``."""
    amp_precision: str | None = None
    """What AMP means; None is ``fp16`` on CUDA and ``bf16`` on a CPU."""
    device: str = "auto"
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    clip_norm: float | None = None
    """Largest L2 norm of all gradients together, unscaled; None does not clip."""
    seed: int = 0
    data_dir: Path = Path()
    data: Literal["auto", "real", "synthetic"] = "auto"
    settings: Mapping[str, str] = field(default_factory=dict)
    """Fields of the experiment by name, as text: ``--set width=128``."""
    attended: bool = True
    """Somebody can press a key: a run that cannot go on pauses and asks instead of failing."""

    def as_json(self) -> dict[str, Any]:
        """The request as JSON values, for ``run.json``."""
        return asdict(self) | {"data_dir": str(self.data_dir), "settings": dict(self.settings)}
