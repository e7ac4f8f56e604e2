# SPDX-License-Identifier: Apache-2.0
"""The commands of the documents that a new user runs on a bare system: of blocks with the mark of ``tests/newuser/run``.

``python -m tests.newuser.commands`` prints them, a line each. It needs nothing but Python.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.support.documents import DOCS, README, find_blocks

DOCUMENTS = (README, DOCS / "spark.md")


def find_commands_of_a_new_user() -> Iterator[str]:
    """Yield the lines of the blocks, in the documents' order, without what needs Java and Maven (``make interop``)."""
    for document in DOCUMENTS:
        for block in find_blocks(document, "sh", "tests/newuser/run"):
            for line in block.text.splitlines():
                if not line.startswith("make interop"):
                    yield line


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in find_commands_of_a_new_user())
