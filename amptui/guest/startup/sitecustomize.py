"""Python runs this before a script that ``amptui run --observe`` started, and no other script.

It undoes how it got here, and then lets the ``sitecustomize`` run that would have run without it.
"""

import os
import sys


def _prepare() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is not loaded yet
    root = os.path.dirname(os.path.dirname(here))  # noqa: PTH120
    if "AMPTUI_LAUNCHER" in os.environ and "RANK" not in os.environ:
        sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]  # noqa: PTH100
        return  # torchrun's own process: its ranks inherit the variables
    os.environ.pop("AMPTUI_LAUNCHER", None)
    python_path = os.environ.pop("AMPTUI_OBSERVE", "-")
    if python_path.startswith("+"):
        os.environ["PYTHONPATH"] = python_path[1:]
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path_importer_cache.pop(here, None)
    # This amptui, wherever it lies: the script's interpreter may know another or none.
    sys.path[:] = [root, *(path for path in sys.path if os.path.abspath(path) != here)]  # noqa: PTH100
    try:
        from amptui.guest.auto_observe import await_torch
    finally:
        del sys.path[0]
    await_torch()


try:
    _prepare()
except Exception as error:  # noqa: BLE001 - whatever fails here, the script is started
    print(f"amptui: cannot watch this script: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201

sys.modules.pop("sitecustomize", None)
# If there is none, this raises what Python expects then.
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
