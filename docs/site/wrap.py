# SPDX-License-Identifier: Apache-2.0
"""Wraps the prose of documents: ``python docs/site/wrap.py FILE...``.

Only paragraphs and list items with a line of more than 120 columns are filled anew. Tables, headings, blocks of code and
comments stay as they are, and inline code is never broken.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

LIMIT = 120
_WIDTH = 118
_ATOM = re.compile(r"(?:\d{4}-\d\d-\d\d, (?=`)|`[^`]*`|[^\s`])+")
"""Text that is not broken: a word, inline code, a date with its commit."""
_FENCE = re.compile(r" *```")
_KEPT = re.compile(r" *(?:```|\||#|<!--|>|!\[)")
_ITEM = re.compile(r"( *)([-*+] |\d+[.] )?")
_BEGINS_ITEM = re.compile(r" *(?:[-*+] |\d+[.] )")
_MARK = re.compile(r"[-+*#>|]+|\d+[.)]")


def wrap(text: str) -> str:
    """Return a document with its long lines wrapped."""
    return "\n".join(_wrap_lines(text.split("\n")))


def _wrap_lines(lines: list[str]) -> Iterator[str]:
    at, is_code = 0, False
    while at < len(lines):
        line = lines[at]
        is_code ^= _FENCE.match(line) is not None
        if is_code or not line.strip() or _KEPT.match(line):
            yield line
            at += 1
            continue
        end = at + 1
        while (
            end < len(lines) and lines[end].strip() and not (_KEPT.match(lines[end]) or _BEGINS_ITEM.match(lines[end]))
        ):
            end += 1
        block = lines[at:end]
        yield from _fill(block) if any(len(one) > LIMIT for one in block) else block
        at = end


def _fill(block: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a paragraph or list item, filled."""
    text = " ".join(line.strip() for line in block)
    first, *_ = block
    found = _ITEM.match(first)
    assert found is not None, "it matches anything"
    indent, mark = found[1], found[2] or ""
    line, is_empty = indent + mark, True
    for atom in _ATOM.findall(text.removeprefix(mark.strip())):
        # a mark at the beginning of a line would begin a list
        if not is_empty and len(line) + 1 + len(atom) > _WIDTH and not _MARK.fullmatch(atom):
            yield line
            line = indent + " " * len(mark) + atom
        else:
            line += atom if is_empty else f" {atom}"
        is_empty = False
    yield line


def main(paths: list[str]) -> None:
    """Wrap files in place."""
    for path in map(Path, paths):
        path.write_text(wrap(path.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
