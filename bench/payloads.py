# SPDX-License-Identifier: Apache-2.0
"""Realistic record values: JSON documents of varying length, part text, part random numbers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Final

SHORTEST: Final = 100
LONGEST: Final = 400
_WORDS: Final = 2000


def documents(count: int, seed: int = 7) -> Iterator[bytes]:
    """Yield ``count`` documents of 100 to 400 bytes; all lengths are equally likely.

    The same seed gives the same documents.
    """
    source = random.Random(seed)
    words = [source.randbytes(source.randrange(2, 6)).hex() for _ in range(_WORDS)]
    for number in range(count):
        size = source.randint(SHORTEST, LONGEST)
        document = {
            "id": source.getrandbits(48),
            "user": f"u{source.randrange(10**6):06}",
            "at": 1_700_000_000_000 + 37 * number,
            "amount": round(source.random() * 1000, 2),
            "note": "",
        }
        text = json.dumps(document, separators=(",", ":")).encode()
        note = " ".join(source.choices(words, k=(size - len(text)) // 5 + 1)).encode()[: size - len(text)]
        # the note is the last field, and none of its words needs escaping
        yield text[:-2] + note.ljust(size - len(text), b".") + b'"}'
