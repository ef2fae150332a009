"""Text as a sequence of character indices: the one that comes with Python, or the user's file."""

from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor

from amptui.base.errors import DataError
from amptui.data.sources import Arrays, Data, DataRequest

ONE_VALIDATED_IN = 10
"""The last tenth of the text is for validation."""

WINDOWS_PER_CONTEXT = 8
"""How often an epoch predicts each character, each time at another position in its context."""


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A text as character indices."""

    name: str
    characters: str
    """Those that occur, in order of their code points: the index of a character is its position here."""
    numbers: Tensor
    """int64 [length]."""


def read_text(path: Path | None) -> Text:
    """The UTF-8 file at ``path``; or, for None, the language reference behind Python's ``help()``.

    That reference depends only on the version of Python: about 450,000 characters in 3.11. Raises
    ``DataError`` for a file that cannot be read as text.
    """
    if path is None:
        return _numbered("Python's reference", "\n\n".join(topics[name] for name in sorted(topics)))
    try:
        return _numbered(path.name, path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        what = f"cannot read {path} ({error.strerror or error})"
        raise DataError(what, hint="choose a text file with --set text=PATH") from error
    except UnicodeDecodeError as error:
        what = f"{path} is not UTF-8 text (byte {error.start:,})"
        raise DataError(what, hint="convert it to UTF-8") from error


def text_data(request: DataRequest, path: Path | None, *, context: int) -> Data:
    """Windows of ``context`` characters and, as targets, the characters after each: int64 [N, context].

    There is no synthetic text: if it is asked for, this warns and uses the text anyway. Raises ``DataError``
    for a text that cannot be read or is too short.
    """
    text = read_text(path)
    if request.kind == "synthetic":
        request.warn(f"there is no synthetic text: training on {text.name}")
    validated = len(text.numbers) // ONE_VALIDATED_IN
    if validated <= context:
        least = (context + 1) * ONE_VALIDATED_IN
        what = f"{text.name} has {len(text.numbers):,} characters, but context={context} needs {least:,}"
        raise DataError(what, hint="use a longer text or --set context=N")
    training, validation = text.numbers[:-validated], text.numbers[-validated:]
    stride = max(1, context // WINDOWS_PER_CONTEXT)
    return Data(
        name=text.name,
        real=True,
        train=_windows(training, context, stride=stride),
        validation=_windows(validation, context, stride=context),
    )


def _windows(numbers: Tensor, context: int, *, stride: int) -> Arrays:
    """Every ``stride``-th window of the text; views, which take no extra memory."""
    stretches = numbers.unfold(0, context + 1, stride)
    return Arrays(stretches[:, :-1], stretches[:, 1:])


def _numbered(name: str, text: str) -> Text:
    if not text:
        raise DataError(f"{name} is empty", hint="choose a text file with --set text=PATH")
    code_points = torch.frombuffer(bytearray(text.encode("utf-32-le")), dtype=torch.int32)
    occurring = code_points.unique()
    characters = "".join(map(chr, occurring.tolist()))
    return Text(name, characters, torch.searchsorted(occurring, code_points))
