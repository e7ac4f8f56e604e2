# SPDX-License-Identifier: Apache-2.0
"""The documents as tests read them: code blocks with their language and mark, and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TOP: Final = Path(__file__).resolve().parents[2]
README: Final = TOP / "README.md"
DOCS: Final = TOP / "docs"

_BLOCK: Final = re.compile(
    r"^(?P<indent> *)(?:<!-- tested by (?P<tests>\S+(?:, \S+)*) -->\n *)?```(?P<language>[a-z]*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced code block.

    ``tests`` are the tests that run it, from the mark ``<!-- tested by PATH, PATH -->`` on the line before.
    """

    document: Path
    line: int
    language: str
    text: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.document.relative_to(TOP)}:{self.line}"


def find_documents() -> list[Path]:
    """Return README and all pages of docs, sorted."""
    return [README, *sorted(DOCS.rglob("*.md"))]


def find_blocks(document: Path, language: str | None = None, test: str | None = None) -> Iterator[Block]:
    """Yield the blocks of a document, of one language and run by one test if these are given."""
    text = document.read_text()
    for match in _BLOCK.finditer(text):
        block = Block(
            document=document,
            line=text.count("\n", 0, match.start("text")),
            language=match["language"],
            text=match["text"],
            tests=tuple((match["tests"] or "").replace(",", "").split()),
        )
        if language in (None, block.language) and test in (None, *block.tests):
            yield block


_LINK: Final = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_FENCE: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def find_links(document: Path) -> Iterator[str]:
    """Yield the targets of a document's links within the repository, images included."""
    prose = re.sub(r"`[^`\n]*`", "code", _FENCE.sub("", document.read_text()))
    for match in _LINK.finditer(prose):
        if not re.match(r"[a-z]+:", match[1]):
            yield match[1]


def find_slugs(document: Path) -> set[str]:
    """Return the anchors of a document's headings: lower case, hyphens for spaces, no other punctuation."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def read_table(document: Path, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading."""
    text = document.read_text()
    section = re.split(r"\n#+ ", text[text.index(f"\n{heading}\n") + 1 :], maxsplit=2)
    rows = [line for line in section[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in rows[2:]]
