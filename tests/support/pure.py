# SPDX-License-Identifier: Apache-2.0
"""The pure Python readers, where the native kernel is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from consumerd.wire import kernel

_PARTS = (
    "records", "messages", "legacy", "snappy", "lz4", "gather", "lines", "memory", "fold", "building",
)  # fmt: skip


@contextmanager
def without_kernel() -> Iterator[None]:
    """Have everything in the block be done in Python, as if no part of the kernel had been built."""
    parts = {name: getattr(kernel, name) for name in _PARTS if hasattr(kernel, name)}
    for name in parts:
        setattr(kernel, name, None)
    try:
        yield
    finally:
        for name, part in parts.items():
            setattr(kernel, name, part)
