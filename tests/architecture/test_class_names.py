# SPDX-License-Identifier: Apache-2.0
"""A public class name means one thing: whoever searches for it finds one class."""

import ast
from collections import defaultdict
from pathlib import Path

import consumerd

_PACKAGE = Path(consumerd.__file__).parent


def test_no_public_class_name_is_used_twice() -> None:
    """Two classes of one name in two modules are taken for each other, in reviews and in logs."""
    homes = defaultdict(list)
    for path in sorted(_PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(_PACKAGE)))
    assert {} == {name: paths for name, paths in homes.items() if len(paths) > 1}
