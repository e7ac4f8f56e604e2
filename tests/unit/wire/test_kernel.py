# SPDX-License-Identifier: Apache-2.0
"""The seam to the native kernel: built where it must be, switched off where somebody says so, and told of either way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from consumerd.wire import kernel

_SOURCES = Path(kernel.__file__).with_name("_kernel")


def seam_says(**environment: str) -> str:
    """Return what a process that starts now says of its kernel."""
    code = "from consumerd.wire import kernel; print(kernel.NATIVE, kernel.describe())"
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.skipif(
    os.environ.get("CONSUMERD_REQUIRE_KERNEL") != "1", reason="it may be absent: there may be no compiler"
)
@pytest.mark.skipif(os.environ.get(kernel.SWITCH) == "off", reason="it is switched off")
def test_the_kernel_is_built_where_it_is_required() -> None:
    """Everything passes without it: a build that has failed must not pass for one."""
    assert kernel.NATIVE, kernel.describe()


@pytest.mark.skipif(not kernel.NATIVE, reason="there is no kernel")
def test_the_kernel_is_not_older_than_its_sources() -> None:
    """Tests of yesterday's kernel say nothing of today's."""
    shared = [*_SOURCES.glob("*.h"), *_SOURCES.glob("*.pxd")]
    older = [
        f"{part.name} is older than {source.name}"
        for own in _SOURCES.glob("*.pyx")
        for part in [Path(sys.modules[f"consumerd.wire._kernel.{own.stem}"].__file__ or "")]
        for source in (own, *shared)
        if part.stat().st_mtime < source.stat().st_mtime
    ]

    assert older == [], "make kernel"


def test_the_seam_has_every_part_that_there_is() -> None:
    """A module that nobody asks for would be compiled and tested for nothing."""
    assert {path.stem for path in _SOURCES.glob("*.pyx")} <= set(vars(kernel))


def test_switched_off_it_says_so() -> None:
    """To find out whether a fault is the kernel's."""
    assert seam_says(CONSUMERD_KERNEL="off") == "False none, pure Python: CONSUMERD_KERNEL=off\n"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ModuleNotFoundError("No module named 'x'"), "none, pure Python: not built, for want of a C compiler"),
        (ImportError("undefined symbol: y"), "none, pure Python: cannot load records: undefined symbol: y; "),
    ],
    ids=["not built", "of another system"],
)
def test_where_it_is_not_there_it_says_why_and_what_helps(
    monkeypatch: pytest.MonkeyPatch, error: ImportError, expected: str
) -> None:
    """The daemon is an order of magnitude slower then, and nothing else would say so."""
    monkeypatch.setattr(kernel, "records", None)
    monkeypatch.setattr(kernel, "_is_off", False)
    monkeypatch.setattr(kernel, "_missing", {"records": error})

    assert kernel.describe().startswith(expected)
    assert "make kernel" in kernel.describe()
