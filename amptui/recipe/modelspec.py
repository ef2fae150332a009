"""Parses MODEL on the command line, a name, a file or a module, without importing it."""

import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from amptui.base.errors import UsageError
from amptui.models import CATALOGUE


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Where to find an experiment's class."""

    text: str
    """What the user typed."""
    name: str
    """The name on the screen and in the run's folder."""
    module: str = ""
    path: Path | None = None
    class_name: str = ""
    """Empty: the one experiment that the module defines."""

    @property
    def anywhere(self) -> str:
        """Text for the same model that works in every working folder."""
        if self.path is None:
            return self.text
        return f"{self.path.resolve()}:{self.class_name}".rstrip(":")


def parse_model(text: str) -> ModelSpec:
    """``mnist-deep``, ``path/to/file.py[:Class]`` or ``package.module:Class``; raises UsageError."""
    if text in CATALOGUE:
        return ModelSpec(text, text, module=CATALOGUE[text][0])
    place, _, class_name = text.partition(":")
    if place.endswith(".py") or "/" in place:
        path = Path(os.path.expanduser(place))  # noqa: PTH111 - unlike expanduser(), never raises
        if not os.path.isfile(path):  # noqa: PTH113 - unlike is_file(), does not raise for a path that is too long
            raise UsageError(
                f"no model file {place}", hint="check the path, or see `amptui models` for names"
            )
        if path.suffix != ".py":
            raise UsageError(f"{place} is not a Python file", hint="a model file ends in .py")
        return ModelSpec(text, path.stem, path=path, class_name=class_name)
    if class_name:
        return ModelSpec(text, class_name, module=place, class_name=class_name)
    near = get_close_matches(text, CATALOGUE, n=1, cutoff=0.4)
    choices = f"there are {', '.join(CATALOGUE)}, or give a path to a .py file"
    hint = f"did you mean {near[0]}?" if near else choices
    raise UsageError(f"no model named {text!r}", hint=hint)
