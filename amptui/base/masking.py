"""Masks secrets in what is recorded: values whose names say what they are, and the users of URLs."""

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"

_NAME = r"[\w.+-]*(?:token|key|secret|passw(?:or)?d|passphrase|pwd|credentials?|auth)"
"""How the name ends: ``--max-tokens`` and ``--tokenizer`` name no secret."""

_WORD = re.compile(rf"((?:--?[\w-]+=)?{_NAME}=).+", re.IGNORECASE | re.DOTALL)

_VALUE = re.compile(rf"(?<![\w.+-])({_NAME}[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]+", re.IGNORECASE)
"""``token=...`` in a URL, ``"token": "..."`` in JSON."""

_URL_USER = re.compile(r"(\w://)[^/\s@]+@")


def masked(value: Any, name: str = "") -> Any:
    """``value``, called ``name``, of JSON's types, with ``***`` for what is secret in it."""
    if not value or isinstance(value, int | float):
        return value
    if re.fullmatch(_NAME, name, re.IGNORECASE):
        return MASK
    if isinstance(value, Mapping):
        return {key: masked(part, str(key)) for key, part in value.items()}
    if isinstance(value, list | tuple):  # perhaps the words of a command line
        names = [str(word) if str(word).startswith("-") else "" for word in ("", *value)]
        pairs = zip(names, value, strict=False)
        return type(value)(masked(word, "" if str(word).startswith("--") else name) for name, word in pairs)
    if isinstance(value, str):
        whole = _WORD.fullmatch(value)
        plain = whole[1] + MASK if whole else _VALUE.sub(rf"\1{MASK}", value)
        return _URL_USER.sub(rf"\1{MASK}@", plain)
    return value
