# SPDX-License-Identifier: Apache-2.0
"""Base class, common types and validation errors of the settings models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, TypeVar

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
    """Mistake in settings that a validator has found: the keys involved, and advice.

    ``keys`` are relative to the validator's model; the first one begins the error message. A key is a text
    (``tls.ca_file``) or, if names in it may contain dots, a tuple of its parts.
    """

    keys: tuple[str | KeyPath, ...]
    message: str

    @property
    def paths(self) -> tuple[KeyPath, ...]:
        """Keys involved, as paths: tuples of their parts."""
        return tuple(tuple(key.split(".")) if isinstance(key, str) else key for key in self.keys)


class SettingFaults(ValueError):
    """Error with all mistakes that one validator has found in settings."""

    def __init__(self, found: Iterable[SettingFault]) -> None:
        self.found: Final = tuple(found)
        super().__init__("; ".join(f"{render_key(one.paths[0])}: {one.message}" for one in self.found))


class MissingKeys(ValueError):
    """Error for a section in which none of several keys is given.

    At least one of ``keys`` is needed. Example: ``cluster`` without ``zookeeper`` and ``bootstrap``. pydantic does not
    report this itself, since each of the keys has a default (None).
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self.keys: Final = tuple(keys)
        super().__init__(f"missing: {', '.join(self.keys)}")


def refuse(found: Iterable[SettingFault]) -> None:
    """Raise SettingFaults with these mistakes; do nothing if there are none."""
    if faults := tuple(found):
        raise SettingFaults(faults)


def in_our_words(check: Callable[[str], object], prefix: str = "") -> AfterValidator:
    """Return a pydantic validator of texts, made from a function that raises ConfigError.

    Args:
        check: Raises ConfigError for a text that is not legal.
        prefix: Key with which the messages of ``check`` begin. It is removed, since the final message names the key
            anyway.
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
"""Text that Kafka's Java consumer accepts as a group or client id (kafka.common.Config)."""
TopicName = Annotated[str, in_our_words(_check_topic, "topic")]

WireBytes = Annotated[int, BeforeValidator(read_bytes), Field(gt=0, le=INT32_MAX)]
"""Size in bytes that requests carry as a signed 32-bit number."""
WireMilliseconds = Annotated[int, BeforeValidator(read_milliseconds), Field(gt=0, le=INT32_MAX)]
"""Duration in ms that requests carry as a signed 32-bit number."""


_Value = TypeVar("_Value")


class Section(BaseModel):
    """Base class of the settings' sections. Unknown keys are refused; values are immutable.

    ``NEEDED`` lists keys to name in the error if a whole section is missing, besides those without a default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    NEEDED: ClassVar[tuple[str, ...]] = ()
    """Keys that a missing section is asked for, besides those without a default."""

    @model_validator(mode="before")
    @classmethod
    def _empty_section_has_defaults(cls, value: object) -> object:
        # "http:" with all its keys commented out is None in YAML
        return {} if value is None else value

    def fill(self, kind: Callable[..., _Value]) -> _Value:
        """Make a dataclass instance from the section: fields get the settings of the same name.

        Example: ``settings.fetch.fill(FetchSettings)`` has ``min_bytes`` of the settings. Its field
        ``backoff_initial_s``, for which there is no setting, keeps the dataclass's default.
        """
        settings = type(self).model_fields
        return kind(**{name: getattr(self, name) for name in inspect.signature(kind).parameters if name in settings})
