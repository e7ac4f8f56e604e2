"""Landed files and quarantined units of format 1, as the release before wrote them: ``tests/vectors/landed-1``."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "vectors" / "landed-1"
CLUSTER = "2-1700000000000"
GROUP = "lake"
CZXID = 7
END = 60
"""Where the newest chain of orders/0 ends; it is chain 2, of the log's first truncation."""


def copy_landed(kind: str, folder: Path) -> Path:
    """Copy a recorded landing folder, with the times of modification that JSON lines' metadata name; return the copy."""
    shutil.copytree(RECORDED / kind, folder)
    for meta in folder.rglob("_meta/*.json"):
        data = meta.parent.parent / f"{meta.name[:20]}.jsonl"
        modified_ns = json.loads(meta.read_bytes())["modified_ns"]
        os.utime(data, ns=(modified_ns, modified_ns))
    return folder
