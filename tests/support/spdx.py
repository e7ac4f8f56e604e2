# SPDX-License-Identifier: Apache-2.0
"""The licence line of source files: ``SPDX-License-Identifier: Apache-2.0`` in a comment, first, or behind ``#!``.

    python -m tests.support.spdx          # prints the files that lack it; exit code 1 if there are any
    python -m tests.support.spdx --add    # adds it

Source files are those in git, by their suffix or by ``#!``. An empty file has nothing to license.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
IDENTIFIER: Final = "SPDX-License-Identifier: Apache-2.0"

_COMMENTS: Final = {".py": "#", ".pyx": "#", ".pxd": "#", ".sh": "#", ".h": "//", ".c": "//", ".java": "//"}
_NAMES: Final = {"Makefile": "#", "Dockerfile": "#"}


def find_comment(name: str, text: str) -> str | None:
    """Return what begins a comment in a file, or None if it is no source file."""
    path = Path(name)
    if path.name in _NAMES:
        return _NAMES[path.name]
    return _COMMENTS.get(path.suffix, "#" if not path.suffix and text.startswith("#!") else None)


def has_line(text: str) -> bool:
    """Say whether the line is where it belongs."""
    lines = text.splitlines()
    first = lines[1:2] if text.startswith("#!") else lines[:1]
    return bool(first) and first[0].endswith(IDENTIFIER)


def add_line(text: str, comment: str) -> str:
    """Return the text with the line."""
    head, rest = "", text
    if text.startswith("#!"):
        head, _, rest = text.partition("\n")
        head += "\n"
    return f"{head}{comment} {IDENTIFIER}\n{rest}"


def find_lacking(root: Path = ROOT) -> list[tuple[Path, str]]:
    """Return the source files without the line, each with what begins a comment in it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    found = []
    for name in filter(None, listed.split("\0")):
        path = root / name
        if path.is_symlink() or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a recorded vector, a picture
            continue
        comment = find_comment(name, text)
        if text.strip() and comment is not None and not has_line(text):
            found.append((path, comment))
    return found


def main() -> int:
    """Print or mend what lacks the line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", action="store_true", help="add the line")
    add = parser.parse_args().add
    lacking = find_lacking()
    for path, comment in lacking:
        if add:
            path.write_text(add_line(path.read_text(encoding="utf-8"), comment), encoding="utf-8")
        else:
            sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    sys.stdout.write(f"{len(lacking)} files {'have it now' if add else 'lack it'}\n")
    return int(bool(lacking) and not add)


if __name__ == "__main__":
    sys.exit(main())
