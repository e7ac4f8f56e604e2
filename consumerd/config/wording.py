# SPDX-License-Identifier: Apache-2.0
"""Texts for pydantic's validation errors: one line each, with the value and advice."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from consumerd.config.schema import guess

_SHOWN: Final = 60
"""Characters of a value that a message repeats, at most."""

_OTHER_WORDS: Final[Mapping[str, str]] = {
    "smallest": "earliest", "beginning": "earliest", "first": "earliest",
    "largest": "latest", "end": "latest", "last": "latest",
    "warn": "warning", "err": "error", "critical": "error", "trace": "debug", "text": "console", "plain": "console",
    "drop": "skip", "ignore": "skip", "fail": "stop", "gz": "gzip", "zst": "zstd",
}  # fmt: skip
"""Values that other programs use, and our values of the same meaning."""

_Describe = Callable[[str, Mapping[str, Any]], str]
_DESCRIPTIONS: Final[Mapping[str, _Describe]] = {
    "int_type": lambda shown, _: f"expected a whole number, got {shown}",
    "int_parsing": lambda shown, _: f"expected a whole number, got {shown}",
    "int_from_float": lambda shown, _: f"expected a whole number, got {shown}",
    "int_parsing_size": lambda shown, _: f"expected a smaller number, got {shown}",
    "float_type": lambda shown, _: f"expected a number, got {shown}",
    "float_parsing": lambda shown, _: f"expected a number, got {shown}",
    "finite_number": lambda shown, _: f"expected a number, got {shown}",
    "bool_type": lambda shown, _: f"expected true or false, got {shown}",
    "bool_parsing": lambda shown, _: f"expected true or false, got {shown}",
    "path_type": lambda shown, _: f"expected a path, got {shown}",
    "greater_than": lambda shown, context: f"expected more than {context['gt']}, got {shown}",
    "greater_than_equal": lambda shown, context: f"expected at least {context['ge']}, got {shown}",
    "less_than": lambda shown, context: f"expected less than {context['lt']}, got {shown}",
    "less_than_equal": lambda shown, context: f"expected at most {context['le']}, got {shown}",
    "string_too_short": lambda _shown, _: "is empty: write a value",
    "string_pattern_mismatch": lambda shown, context: f"{shown} does not have the form {context['pattern']}",
    "too_short": lambda _shown, _: "is empty: give at least one",
    "model_type": lambda shown, _: f"expected keys with values (key: value), got {shown}",
    "model_attributes_type": lambda shown, _: f"expected keys with values (key: value), got {shown}",
    "dict_type": lambda shown, _: f"expected names with values (name: value), got {shown}",
    "tuple_type": lambda shown, _: f"expected a list, such as [a, b], got {shown}",
    "list_type": lambda shown, _: f"expected a list, such as [a, b], got {shown}",
    "timezone_aware": lambda shown, _: f"expected a time with its zone, such as 2026-03-01T12:00:00Z, got {shown}",
}
_TIME_TYPES: Final = ("datetime_", "date_", "timezone_")


def describe(item: Mapping[str, Any], *, secret: bool = False) -> str:
    """Describe one validation error of pydantic's ``ValidationError.errors()`` in a line.

    Args:
        item: Error, with its input and context.
        secret: True if the value must not be repeated.
    """
    kind, value, context = item["type"], item.get("input"), item.get("ctx", {})
    shown = "a value" if secret else show(value)
    if kind == "invalid_key":
        return "expected the name of a key, got a number: a comma within { } separates keys"
    if item["loc"][-1:] == ("[key]",):
        return f"expected a name, got {shown}: put it in quotes"
    if kind in ("string_type", "string_sub_type"):
        return _describe_text(value, shown)
    if value is None and kind not in ("missing", "value_error"):
        return "is empty: write a value, or leave the key out"
    if kind == "literal_error":
        return _describe_choice(value, shown, context["expected"])
    if kind in ("tuple_type", "list_type") and isinstance(value, str) and not secret:
        return f"expected a list, got {shown}: write [{value}]"
    if kind in ("tuple_type", "list_type") and isinstance(value, dict) and all(str(key).isdigit() for key in value):
        return "a list is set as a whole: write all of its entries, such as '[{topics: [orders], sink: lake}]'"
    if kind in _DESCRIPTIONS:
        return _DESCRIPTIONS[kind](shown, context)
    if kind.startswith(_TIME_TYPES):
        return f"expected a time with its zone, such as 2026-03-01T12:00:00Z, got {shown}"
    message: str = item["msg"]
    return message.removeprefix("Value error, ")


def describe_unknown(key: str, known: list[str], suggestion: str | None) -> str:
    """Return the message for an unknown key.

    Args:
        known: Keys that the section has.
        suggestion: Key that was probably meant; None if none is similar.
    """
    hint = f"; did you mean {suggestion}?" if suggestion is not None else ""
    return f"unknown key{hint}; there is {', '.join(known)}" if known else f"unknown key {key!r}{hint}"


def show(value: object) -> str:
    """Return the value of a setting in YAML notation, shortened for a message.

    Of a list or mapping, only the kind is shown.
    """
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "keys with values"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = repr(value) if isinstance(value, (str, int, float)) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _describe_text(value: object, shown: str) -> str:
    if value is None:
        return "is empty: write a value"
    if isinstance(value, (bool, int, float)):
        return f"expected text, got {shown}, which YAML reads as no text: put it in quotes"
    return f"expected text, got {shown}"


def _describe_choice(value: object, shown: str, expected: str) -> str:
    choices = re.findall(r"'([^']*)'", expected)
    listed = " or ".join([", ".join(choices[:-1]), choices[-1]]) if len(choices) > 1 else "".join(choices)
    word = str(value).lower()
    meant = _OTHER_WORDS.get(word)
    suggestion = meant if meant in choices else guess(word, choices)
    if suggestion is not None and sum(choice.startswith(word) for choice in choices) > 1:
        suggestion = None  # ambiguous: roundrobin may mean roundrobin-0.8 or roundrobin-1.0
    return f"expected {listed}, got {shown}" + (f"; did you mean {suggestion}?" if suggestion is not None else "")
