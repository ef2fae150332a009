"""How a script that never calls amptui is observed.

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
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from amptui.guest import handover

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from amptui.guest.monitor import Monitor
    from amptui.loops.script.observed_loop import ObservedLoop

_OPTIMIZERS = "torch.optim.optimizer"


def await_torch() -> None:
    """Observe the first optimizer step of this process, which has not run a line of the script yet."""
    if handover.keep_run_dir():
        sys.meta_path.insert(0, _AwaitsTorch())
        atexit.register(_print_hint, os.getpid())


def _print_hint(pid: int) -> None:
    """At the end of a script without a step: what to do about torch's error that ended it."""
    if os.getpid() != pid or not handover.kept_run_dir():
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
    if handover.kept_run_dir():
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
        if run_dir := handover.kept_run_dir():
            handover.mark_unsaved(run_dir)
