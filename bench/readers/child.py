# SPDX-License-Identifier: Apache-2.0
"""Readers that are commands and print their progress: Java's tools, loops over client libraries."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.readers.running import ReaderFailed, Running, Source
from bench.slopes import Sample

_ROOT: Final = Path(__file__).resolve().parents[2]

Command = Callable[[Source], list[str]]
Parse = Callable[[str], Sample | None]
"""Reads a line of output; returns None for a line without a sample."""


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    out: Path
    log: Path
    parse: Parse
    _series: list[Sample]
    _read: int = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    def series(self) -> Sequence[Sample]:
        ended = self.process.poll()
        with self.out.open("rb") as stream:
            stream.seek(self._read)
            whole = stream.read().rpartition(b"\n")
        self._read += len(whole[0]) + len(whole[1])
        found = [sample for line in whole[0].decode(errors="replace").splitlines() if (sample := self.parse(line))]
        self._series += found
        if ended is not None and not found:
            raise ReaderFailed(f"ended with {ended} after {self._series[-1:]}: {self.log.read_text()[-1000:]}")
        return self._series


def child(command: Command, parse: Parse) -> Callable[[Source, Path], AbstractContextManager[Running]]:
    """Return a starter that runs ``command`` and reads its output with ``parse``."""

    @contextmanager
    def start(source: Source, folder: Path) -> Iterator[Running]:
        out, log = folder / "out", folder / "log"
        with out.open("wb") as stdout, log.open("wb") as stderr:
            process = subprocess.Popen(
                command(source), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=_ROOT
            )
        try:
            yield _Child(process, out, log, parse, [])
        finally:
            process.kill()
            process.wait()

    return start
