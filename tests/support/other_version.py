# SPDX-License-Identifier: Apache-2.0
"""Other versions of consumerd, for processes of their own: a made-up later one, and the last one with format 1."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Final

VERSION: Final = "99.0.0"
ADDED: Final = "added_later"
"""A key that this release does not know, in everything that the other one writes."""

FORMAT_1_COMMIT: Final = "fa899b8"
"""A commit of this history whose records beside the data are of format 1, and its files without topic and partition."""

_PACKAGE: Final = Path(__file__).resolve().parents[2] / "consumerd"
_VALUE: Final = '{"of": ["another", 1]}'
_EDITS: Final = (
    ("__init__.py", 'return version("consumerd")', f'return "{VERSION}"'),
    # _consumerd.json, _chain.json, what each file says of itself, quarantined units
    ("landing/record_fields.py", "json.dumps(fields,", f'json.dumps({{**fields, "{ADDED}": {_VALUE}}},'),
    # the nodes of requests, of members as Java knows them, and of members for operators
    ("offsets/requests.py", '"version": _FORMAT,', f'"version": _FORMAT, "{ADDED}": {_VALUE},'),
    ("zk/znodes.py", '"timestamp": str(', f'"{ADDED}": {_VALUE}, "timestamp": str('),
    ("group/admission.py", '{"version": 1, **about}', f'{{"version": 1, "{ADDED}": {_VALUE}, **about}}'),
)


def make_other_version(folder: Path) -> str:
    """Make the other version below a folder and return what ``PYTHONPATH`` is to be for it."""
    shutil.copytree(_PACKAGE, folder / "consumerd", ignore=shutil.ignore_patterns("__pycache__"))
    for name, before, after in _EDITS:
        path = folder / "consumerd" / name
        text = path.read_text()
        if text.count(before) != 1:
            raise RuntimeError(f"the text to replace is {text.count(before)} times in {name}, expected once: {before}")
        path.write_text(text.replace(before, after))
    return str(folder)


def make_format_1_version(folder: Path) -> str:
    """Make the version of :data:`FORMAT_1_COMMIT` below a folder and return what ``PYTHONPATH`` is to be for it.

    Raises LookupError if this is no git checkout with that commit in it.
    """
    command = ["git", "-C", str(_PACKAGE.parent), "archive", "--format=tar", FORMAT_1_COMMIT, "consumerd"]
    try:
        done = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise LookupError(f"commit {FORMAT_1_COMMIT} is not here") from error
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return str(folder)
