"""The checkout that the tests lie in, and what a program started there needs to import all of amptui."""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def child_environment() -> Iterator[dict[str, str]]:
    """What to add to a child's environment; nothing where ``amptui.models`` can be imported as it is.

    Only an installation puts ``models/`` into ``amptui``. Where there is none, children import from a
    folder that exists until the context ends.
    """
    if importlib.util.find_spec("amptui.models") is not None:
        yield {}
        return
    with TemporaryDirectory(prefix="amptui-tree-") as folder:
        yield tree_environment(Path(folder))


def tree_environment(folder: Path) -> dict[str, str]:
    """Link the packages into ``folder`` as an installation lays them; how children look there first."""
    package = folder / "amptui"
    package.mkdir()
    for entry in (ROOT / "amptui").iterdir():
        if entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    (package / "models").symlink_to(ROOT / "models")
    (folder / "tests").symlink_to(ROOT / "tests")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Without the safe path `python -m` asks the folder it is started in before all others.
    return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
