"""The only place that builds HTML and SVG, so that no text of a run can become markup."""

import html

from amptui.text import printable

_WITHOUT_END = frozenset({"meta"})


class Markup(str):
    """Finished markup. Any other text is escaped when it is added."""

    __slots__ = ()


def element(name: str, /, *children: str | None, **attributes: object) -> Markup:
    """``<name attributes>children</name>``; a child that is no :class:`Markup` is escaped, None left out.

    An attribute's name may end in ``_`` (``class_``), has ``-`` where Python has ``_`` otherwise, and is left
    out with the value None.
    """
    words = [name, *(_attribute(key, value) for key, value in attributes.items() if value is not None)]
    start = f"<{' '.join(words)}>"
    return Markup(start if name in _WITHOUT_END else f"{start}{joined(*children)}</{name}>")


def joined(*children: str | None) -> Markup:
    """``children`` one after the other."""
    return Markup("".join(_escaped(child) for child in children if child is not None))


def _escaped(text: str) -> str:
    return text if isinstance(text, Markup) else html.escape(_inert(text))


def _attribute(key: str, value: object) -> str:
    return f'{key.removesuffix("_").replace("_", "-")}="{html.escape(_inert(str(value)))}"'


def _inert(text: str) -> str:
    """Text without control characters except line breaks, which cannot change the reading direction."""
    return "\n".join(map(printable, text.expandtabs(4).split("\n")))
