# SPDX-License-Identifier: Apache-2.0
"""Sizes and durations with units, and paths that only a shell understands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from consumerd.sinks.option_types import Bytes, Folder, Milliseconds, WholeNumber

SIZE: TypeAdapter[int] = TypeAdapter(Bytes)
DURATION: TypeAdapter[int] = TypeAdapter(Milliseconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (268435456, 268435456),
        ("268435456", 268435456),
        ("256MiB", 268435456),
        ("256Mi", 268435456),
        ("256 mib", 268435456),
        ("64 MB", 64_000_000),
        ("64KB", 64_000),
        ("1.5GiB", 1610612736),
        ("10 B", 10),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_have_the_units_of_kubernetes_and_of_people(text: object, size: int) -> None:
    """Powers of 1024 with an i, of 1000 without."""
    assert size == SIZE.validate_python(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        (60000, 60000),
        ("60000", 60000),
        ("500ms", 500),
        ("60s", 60_000),
        ("5m", 300_000),
        ("5 min", 300_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("7D", 604_800_000),
        ("0s", 0),
    ],
)
def test_durations_have_units(text: object, milliseconds: int) -> None:
    """Without one it is milliseconds, as the keys say."""
    assert milliseconds == DURATION.validate_python(text)


@pytest.mark.parametrize(
    "text", ["64M", "64 m", "1G", "64MB or so", "MiB", "-1MiB", "1e6", "", " ", "64 MBit", True, 0.5, None]
)
def test_what_is_no_size_is_refused(text: object) -> None:
    """Among them what pydantic alone takes: 64M is a tenth off where powers of 1024 are meant."""
    with pytest.raises(ValidationError):
        SIZE.validate_python(text)


@pytest.mark.parametrize("text", ["60 seconds or so", "5 parsecs", "1.5ms", "-1s", "s", "", "1:30", True, 0.5, None])
def test_what_is_no_duration_is_refused(text: object) -> None:
    """A colon could be hours or minutes."""
    with pytest.raises(ValidationError):
        DURATION.validate_python(text)


@given(st.integers(1, 1 << 40))
def test_numbers_stay_what_they_are(number: int) -> None:
    """As numbers and as texts."""
    assert number == SIZE.validate_python(number) == SIZE.validate_python(str(number))
    assert number == DURATION.validate_python(number) == DURATION.validate_python(f"{number}ms")


@pytest.mark.parametrize("text", ["", " ", "~/x", "$HOME/x", "${HOME}/x", "s3://bucket/x", "file:///x"])
def test_paths_that_a_shell_would_expand_are_refused(text: str) -> None:
    """A folder named ~ is found months later."""
    with pytest.raises(ValidationError):
        TypeAdapter(Folder).validate_python(text)


def test_true_is_no_number() -> None:
    """Python counts it as 1."""
    with pytest.raises(ValidationError, match="expected a whole number, got true"):
        TypeAdapter(WholeNumber).validate_python(True)
