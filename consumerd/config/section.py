# SPDX-License-Identifier: Apache-2.0
"""Base class, common types and validation errors of the settings models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from consumerd.config.origins import KeyPath, render_key
from consumerd.errors import ConfigError
from consumerd.group.identity import validate_name, validate_topic
from consumerd.sinks.option_types import (
    INT32_MAX,
    Bytes,
    FilePath,
    Folder,
    Milliseconds,
    PositiveMilliseconds,
    WholeNumber,
    read_bytes,
    read_milliseconds,
)

__all__ = [
    "Bytes",
    "FilePath",
    "Folder",
    "Milliseconds",
    "Name",
    "PositiveMilliseconds",
    "Section",
    "SettingFault",
    "SettingFaults",
    "TopicName",
    "WholeNumber",
    "WireBytes",
    "WireMilliseconds",
    "in_our_words",
    "refuse",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class SettingFault:
    """One mistake found by a validator: the keys involved, and advice.

    Keys are relative to the validator's model; the first one begins the message. A key is a text (``tls.ca_file``), or
    a path if names may contain dots.
    """

    keys: tuple[str | KeyPath, ...]
    message: str

    @property
    def paths(self) -> tuple[KeyPath, ...]:
        """The keys as paths."""
        return tuple(tuple(key.split(".")) if isinstance(key, str) else key for key in self.keys)


class SettingFaults(ValueError):
    """All mistakes found by one validator, to be reported together."""

    def __init__(self, found: Iterable[SettingFault]) -> None:
        self.found: Final = tuple(found)
        super().__init__("; ".join(f"{render_key(one.paths[0])}: {one.message}" for one in self.found))


def refuse(found: Iterable[SettingFault]) -> None:
    """Raise SettingFaults if there are any."""
    if faults := tuple(found):
        raise SettingFaults(faults)


def in_our_words(check: Callable[[str], object], prefix: str = "") -> AfterValidator:
    """Return a validator of texts that uses a check which raises ConfigError.

    The message's ``prefix`` is removed, since the key is named anyway.
    """

    def validate(value: str) -> str:
        try:
            check(value)
        except ConfigError as error:
            raise ValueError(str(error).removeprefix(f"{prefix}: ")) from None
        return value

    return AfterValidator(validate)


def _check_topic(value: str) -> None:
    """Check a topic name, with special advice for lists and patterns."""
    if "," in value:
        raise ConfigError(f"{value!r} is not a legal topic: write several as a list, [{value.replace(' ', '')}]")
    if any(mark in value for mark in "*+?|()[]\\^$"):
        raise ConfigError(f"{value!r} is not a legal topic: write an expression as pattern: {value!r}")
    validate_topic("topic", value)


Name = Annotated[str, in_our_words(lambda value: validate_name("name", value), "name")]
"""A legal group or client id in Java (kafka.common.Config)."""
TopicName = Annotated[str, in_our_words(_check_topic, "topic")]

WireBytes = Annotated[int, BeforeValidator(read_bytes), Field(gt=0, le=INT32_MAX)]
"""A size that requests carry as a signed 32-bit number."""
WireMilliseconds = Annotated[int, BeforeValidator(read_milliseconds), Field(gt=0, le=INT32_MAX)]
"""A duration that requests carry as a signed 32-bit number."""


class Section(BaseModel):
    """A section of the settings. Unknown keys are refused; values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_section_has_defaults(cls, value: object) -> object:
        # "http:" with all its keys commented out is None in YAML
        return {} if value is None else value
