# SPDX-License-Identifier: Apache-2.0
"""Messages about system calls that failed: they name what refused, so that nobody has to search for it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from consumerd.landing.chain import FileId, hidden_name
from consumerd.landing.failures import describe_failure

SINK = Path("/data/landing")
CHAIN = SINK / "topic=orders/partition=3/chain=1"


@pytest.mark.parametrize(
    ("named", "place"),
    [
        (None, SINK),  # a write to a descriptor, say
        (str(CHAIN / "_meta"), CHAIN / "_meta"),
        (os.fsencode(CHAIN), CHAIN),
        (str(CHAIN / hidden_name("00000000000000000005.jsonl", FileId("w-17"))), CHAIN),  # its name changes each time
    ],
)
def test_the_file_or_folder_that_refuses_is_named(named: str | bytes | None, place: Path) -> None:
    """Else the reason of a partition names the sink's path, which may be fine."""
    error = OSError(errno.EACCES, os.strerror(errno.EACCES), named)
    assert describe_failure(error, "write the file of orders/3", SINK) == (
        f"{place}: cannot write the file of orders/3: Permission denied; let the daemon's user write there; "
        "it is tried again"
    )
