"""What telemetry knows, as JSON and back: a viewer that comes late gets it instead of a run's whole history.

What a class declares is what travels. In a dataclass that is every field. In any other class it is every
attribute that the class annotates without a value; one that it annotates with a value is a cache, which
begins with that value again; what only ``__init__`` sets, a lock say, is wiring and no state. A class may
check what was read with ``check_state``, which raises ``ValueError``.

The input names no class and no attribute. Annotations alone say what is made, in the order in which they
stand, and a fingerprint of them all keeps two versions of amptui from misreading each other.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from amptui import wire
from amptui.telemetry.forms import GENERIC, SIMPLE, TIME, Form, Reading, StateError, Writing, optional, refuse

VERSION = 1
"""To be raised when the meaning of an attribute changes and its annotation does not."""

_Root = TypeVar("_Root")


class StateFormat(Generic[_Root]):
    """The form of ``root``'s state, derived from the annotations of every class that it can hold.

    Objects that are held in several places come back as one, caches empty and wiring missing. What is
    annotated as ``Any`` comes back as it would from the journal, all else as it was.
    """

    def __init__(self, root: type[_Root]) -> None:
        self._plans: dict[type[Any], _Plan] = {}
        self._form = self._object([root])
        told = [VERSION, *(f"{plan.name} {plan.told}" for plan in self._plans.values())]
        self._fingerprint = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]

    @property
    def classes(self) -> frozenset[type[Any]]:
        """All that a state is ever made of."""
        return frozenset(self._plans)

    def dumps(self, value: _Root) -> str:
        """``value``'s state as one line of strict ASCII JSON."""
        writing = Writing()
        assert self._form.write is not None
        written = self._form.write(value, writing)
        state = {
            "version": VERSION,
            "fingerprint": self._fingerprint,
            "texts": list(writing.texts),
            "root": written,
        }
        # Numbers that are numpy's or torch's are written as what they say.
        return json.dumps(
            state, allow_nan=False, check_circular=False, separators=(",", ":"), default=wire.plain
        )

    def read(self, state: Any) -> _Root:
        """What :meth:`dumps` wrote, from its parsed JSON. Raises ``StateError``."""
        if not isinstance(state, dict) or "version" not in state:
            raise StateError("not the state of a run")
        if (state["version"], state.get("fingerprint")) != (VERSION, self._fingerprint):
            raise StateError("the run was started by another version of amptui; attach with that one")
        texts = state.get("texts")
        if not isinstance(texts, list) or not all(type(text) is str for text in texts):
            raise StateError("texts: expected an array of texts")
        root: _Root = self._form.read(state.get("root"), Reading(texts))
        return root

    def _form_of(self, hint: Any) -> Form:
        """The form of values annotated with ``hint``."""
        origin, arguments = get_origin(hint), get_args(hint)
        if hasattr(origin, "__value__"):
            # A `type` statement's alias, as numpy 2.5 has for NDArray from Python 3.12 on.
            return self._form_of(origin.__value__[arguments])
        if origin in (UnionType, Union):
            others = [each for each in arguments if each is not NoneType]
            # Only objects tell by themselves which of several annotations they belong to.
            form = self._form_of(others[0]) if len(others) == 1 else self._object(others)
            return optional(form) if NoneType in arguments else form
        if origin in GENERIC:
            return GENERIC[origin](arguments, self._form_of)
        return SIMPLE[hint] if hint in SIMPLE else self._object([hint])

    def _object(self, classes: Sequence[type[Any]]) -> Form:
        """Objects of any of ``classes``; one that was written before is its number alone."""
        plans = {cls: self._plan(cls) for cls in classes}
        numbered = {plan.number: plan for plan in plans.values()}
        told = "|".join(plan.name for plan in plans.values())

        def write(value: Any, writing: Writing) -> Any:
            number = writing.numbers.get(id(value))
            if number is not None:
                return number
            written = plans[type(value)].write(value, writing)
            writing.numbers[id(value)] = len(writing.numbers)
            return written

        def read(value: Any, reading: Reading) -> Any:
            if type(value) is int and 0 <= value < len(reading.made):
                made = reading.made[value]
                return made if type(made) in plans else refuse(told, value)
            if not isinstance(value, list) or not value or type(value[0]) is not int:
                refuse(told, value)
            plan = numbered.get(value[0]) or refuse(told, value)
            made = plan.read(value, reading)
            reading.made.append(made)
            return made

        return Form(told, read, write)

    def _plan(self, cls: type[Any]) -> "_Plan":
        if cls not in self._plans:
            if not getattr(cls, "__module__", "").startswith("amptui."):
                raise TypeError(f"no form for {cls}")
            forms = {name: self._form_of(hint) for name, hint in declared(cls).items()}
            if is_dataclass(cls) and "time" in forms:
                forms["time"] = TIME
            self._plans[cls] = _Plan(cls, len(self._plans), forms)
        return self._plans[cls]


def declared(cls: type[Any]) -> Mapping[str, Any]:
    """The attributes that are ``cls``'s state, with their annotations."""
    hints = get_type_hints(cls)
    if is_dataclass(cls):
        return {field.name: hints[field.name] for field in fields(cls)}
    return {name: hint for name, hint in hints.items() if not hasattr(cls, name)}


class _Plan:
    """How the objects of one class are written, ``[number, value, ...]``, and made again."""

    def __init__(self, cls: type[Any], number: int, forms: Mapping[str, Form]) -> None:
        self.number = number
        self.name = f"{cls.__module__}.{cls.__qualname__}"
        self.told = ", ".join(f"{name}: {form.told}" for name, form in forms.items())
        self._cls = cls
        self._make = cls if is_dataclass(cls) else _maker(cls)
        self._reads = [(name, form.read) for name, form in forms.items()]
        self._writes = [form.write for form in forms.values()]
        self._values = _values(tuple(forms))

    def write(self, value: Any, writing: Writing) -> list[Any]:
        written: list[Any] = [self.number]
        written += [
            each if write is None else write(each, writing)
            for each, write in zip(self._values(value), self._writes, strict=True)
        ]
        return written

    def read(self, value: Sequence[Any], reading: Reading) -> Any:
        if len(value) != len(self._reads) + 1:
            refuse(self.name, value)
        made = {}
        for (name, read), each in zip(self._reads, value[1:], strict=True):
            try:
                made[name] = read(each, reading)
            except StateError as error:
                raise StateError(f"{self._cls.__name__}.{name}: {error}") from None
        return self._make(**made)


def _values(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)


def _maker(cls: type[Any]) -> Callable[..., Any]:
    """Makes an object with these attributes, past its constructor."""

    def make(**attributes: Any) -> Any:
        made = object.__new__(cls)
        vars(made).update(attributes)
        check = getattr(made, "check_state", None)
        try:
            if check is not None:
                check()
        except ValueError as error:
            raise StateError(f"{cls.__name__}: {error}") from None
        return made

    return make
