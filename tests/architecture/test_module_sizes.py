# SPDX-License-Identifier: Apache-2.0
"""No module of the package is too long to be read in one go."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import consumerd

MOST_LINES: Final = 600


def test_each_module_has_at_most_600_lines() -> None:
    """Docstrings count, too. A longer module has parts that stand alone: move one into a module of its own."""
    package = Path(consumerd.__file__).parent
    lines = {path.relative_to(package): path.read_text().count("\n") for path in package.rglob("*.py")}
    assert {} == {str(path): count for path, count in lines.items() if count > MOST_LINES}
