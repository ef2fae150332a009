"""What `amptui run` hands to the script's process; and how one that never calls amptui is observed.

The script's lines are not changed, and Python itself starts it, as ``python script.py`` does. The folder
``startup`` is put in front of ``PYTHONPATH``; the ``sitecustomize`` in it runs before the script, takes that
entry and amptui's own variables out again, and leaves one finder in ``sys.meta_path``. It finds nothing and
wraps no loader: whenever any module is imported, it looks whether ``torch.optim`` has been loaded meanwhile,
and then waits for the first optimizer. The optimizers that make steps are observed, each with the module that
has its parameters, and with the scalers that they are used with. A script that never imports torch keeps a
finder that finds nothing. Neither child processes, however they are started, nor a program that takes the
script's place by ``os.exec*`` are observed.

Other ways in: ``python -c`` and ``runpy`` stand under every traceback, stack and debugger; a ``.pth`` file or
an entry point of torch's runs in every process of the environment; ``usercustomize`` is off in virtual ones;
``sys.remote_exec`` may come after the first steps; an audit hook is called for every event of the process;
and hooks of ``nn.Module`` slow every forward pass.
"""

import atexit
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from amptui.base.notify_url import take_url
from amptui.base.stacks import print_stacks_if_killed

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from amptui.guest.monitor import Monitor
    from amptui.loops.script.observed_loop import ObservedLoop

RUN_DIR_VARIABLE = "AMPTUI_RUN_DIR"
"""The environment variable by which `amptui run` tells a script where to keep its run."""

OBSERVE_VARIABLE = "AMPTUI_OBSERVE"
"""Set by `amptui run --observe`: ``+`` and the PYTHONPATH that the script shall find, or ``-`` for none."""

LAUNCHER_VARIABLE = "AMPTUI_LAUNCHER"
"""Set if `amptui run --observe` starts a launcher, such as torchrun, whose ranks shall be observed."""

UNSAVED_FILE = "unsaved"
"""In the folder of a run that has ended, or was not opened by a fault: empty, if records are missing."""

_STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")  # noqa: PTH100, PTH118, PTH120

_run_dir = _notify_url = ""


def environment(
    before: Mapping[str, str], run_dir: str, *, observe: bool, launches: bool = False
) -> dict[str, str]:
    """The environment of a script whose run is kept in ``run_dir``, made of the one ``before``.

    A fatal signal leaves a stack. With ``observe`` the process runs ``startup/sitecustomize.py`` before the
    script. One that ``launches`` ranks has each of them do so instead.
    """
    after = {**before, RUN_DIR_VARIABLE: run_dir}
    if observe:
        path = before.get("PYTHONPATH")
        after[OBSERVE_VARIABLE] = "-" if path is None else f"+{path}"
        if launches:
            after[LAUNCHER_VARIABLE] = "1"
        after["PYTHONPATH"] = os.pathsep.join(filter(None, (_STARTUP, path)))
    else:
        after.setdefault("PYTHONFAULTHANDLER", "1")  # an observed script finds no variable of ours
    return after


def mark_unsaved(run_dir: str | os.PathLike[str]) -> None:
    """Tell `amptui run` by a file in the run's folder; it fits on a full disk."""
    with suppress(OSError):
        open(os.path.join(run_dir, UNSAVED_FILE), "x").close()  # noqa: PTH118, PTH123


def take_run() -> tuple[str, str]:
    """The folder that `amptui run` chose for this process's run, and where its news goes; only once."""
    global _run_dir, _notify_url
    run_dir, url = os.environ.pop(RUN_DIR_VARIABLE, "") or _run_dir, take_url() or _notify_url
    _run_dir, _notify_url = "", ""
    return run_dir, url


_OPTIMIZERS = "torch.optim.optimizer"


def await_torch() -> None:
    """Observe the first optimizer step of this process, which has not run a line of the script yet.

    The folder of its run, and where its news goes, are kept without variables that child processes inherit.
    """
    global _run_dir, _notify_url
    _run_dir, _notify_url = os.environ.pop(RUN_DIR_VARIABLE, ""), take_url()
    if _run_dir:
        print_stacks_if_killed()
        sys.meta_path.insert(0, _AwaitsTorch())
        atexit.register(_print_hint, os.getpid())


def _print_hint(pid: int) -> None:
    """At the end of a script without a step: what to do about torch's error that ended it."""
    if os.getpid() != pid or not _run_dir:
        return
    with suppress(Exception):  # the error's own words may fail
        from amptui.base.amp_errors import known_hint
        from amptui.base.prompt import complain

        if hint := known_hint(str(getattr(sys, "last_value", "")))[1]:
            complain(hint)


class _AwaitsTorch:
    """Finds no module. Asked for one, it looks whether torch's optimizers have been loaded meanwhile.

    torch's own import asks for hundreds of modules after them. The import is not wrapped, since a wrapped
    loader would stand in its tracebacks.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._waits = True

    def find_spec(self, _name: str, _path: Sequence[str] | None = None, _target: object = None) -> None:
        """Find nothing."""
        module = sys.modules.get(_OPTIMIZERS)
        spec = getattr(module, "__spec__", None)
        if self._waits and module is not None and not getattr(spec, "_initializing", False):
            self._waits = False
            if os.getpid() == self._pid:
                _await_optimizer(module.Optimizer, self._search)

    def _search(self) -> None:
        try:
            # Not in find_spec: the import system is iterating over the list.
            sys.meta_path.remove(self)
        except ValueError:  # two threads have made an optimizer each
            return
        if os.getpid() != self._pid:
            return
        try:
            search_loop(open_first=_observe, on_fault=_tell_fault)
        except Exception as error:  # whatever fails here, the script goes on
            from amptui.base.script_signals import is_from_signal_handler

            if is_from_signal_handler(error):
                raise
            _tell_fault(error)


def _await_optimizer(optimizer_class: Any, search: Callable[[], None]) -> None:
    """Call ``search`` when the first optimizer has been made; its class is as before then."""
    import functools

    before = optimizer_class.__init__

    @functools.wraps(before)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            before(self, *args, **kwargs)
        except BaseException as error:
            # A bare `raise` does not put this frame back.
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            raise
        optimizer_class.__init__ = before
        search()

    optimizer_class.__init__ = hooked


def search_loop(
    *, open_first: "Callable[[Optimizer, ObservedLoop], object]", on_fault: Callable[[Exception], object]
) -> "ObservedLoop":
    """Call ``open_first`` at the first step of any optimizer in this process.

    ``on_fault`` gets the one error after which nothing is searched. Until the first step,
    :meth:`ObservedLoop.leave` ends the search.
    """
    from amptui.loops.script.observed_loop import ObservedLoop

    loop = ObservedLoop(open_first)
    loop.on_fault = on_fault
    loop.listen()
    return loop


def _observe(optimizer: "Optimizer", loop: "ObservedLoop") -> None:
    if _run_dir:
        observe_from_first_step(optimizer, loop)
    else:
        loop.leave()  # the script opened a run itself


def observe_from_first_step(optimizer: "Optimizer", loop: "ObservedLoop") -> "Monitor":
    """As :func:`amptui.observe`, in the middle of the first step."""
    from amptui.guest.monitor import Monitor
    from amptui.loops.script.script import ObservedScript
    from amptui.loops.script.script_model import owner_of
    from amptui.recipe.trained import NamedOptimizer

    first = NamedOptimizer("", owner_of(optimizer), optimizer)
    return Monitor(ObservedScript(first=first, scaler=loop.scaler, loop=loop))


def _tell_fault(error: Exception) -> None:
    with suppress(Exception):
        from amptui.base.prompt import complain
        from amptui.loops.script.guard import fault_words

        complain(f"cannot watch this script: {fault_words(error)}")
        if _run_dir:
            mark_unsaved(_run_dir)
