# SPDX-License-Identifier: Apache-2.0
"""Python source as a syntax tree, for tests of what the code says."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def parse_file(path: Path) -> ast.Module:
    """Return the tree of a source file.

    The collector rests meanwhile: a failure that it finds is logged with its traceback, which parses source as well, and
    CPython before 3.12 loses count when one parse runs inside another (SystemError, "recursion depth mismatch").
    """
    source = path.read_text()
    was_on = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if was_on:
            gc.enable()
