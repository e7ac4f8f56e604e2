# SPDX-License-Identifier: Apache-2.0
"""Writers of a log on a real disk, killed under load: ``python -m tests.support.log_process PATH ROUNDS SEED``.

In each round a child opens the log, appends (with flushes, new segments, retention and checkpoints in between), and tells
of each append that has returned; after some of these it is killed by SIGKILL. Then the log is opened and read to its
end: whatever was acknowledged must be there. Prints what came of it as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path

from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.log_directory import LogDirectory
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.settings import LogSettings
from tests.support.log_check import check_folder
from tests.support.logs import PARTITION, read_records, record_set

SETTINGS = LogSettings(
    segment_bytes=30_000,
    index_interval_bytes=512,
    flush_messages=100,
    retention_ms=None,
    retention_bytes=200_000,
    message_format=2,
)
_END = struct.Struct(">q")


def main() -> None:
    """Do what the command line says."""
    path, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dice = random.Random(seed)
    slowest_s = 0.0
    ends: list[int] = []
    for number in range(rounds):
        began = time.monotonic()
        acknowledged = _write_until_killed(path, dice.randrange(1, 250), codec=number % 4)
        ends.append(_check(path, max([acknowledged, *ends])))
        slowest_s = max(slowest_s, time.monotonic() - began)
    sys.stdout.write(json.dumps({"ends": ends, "slowest_s": slowest_s}))


def value_at(offset: int) -> bytes:
    """Return the value that belongs at an offset."""
    return f"{offset} ".encode() * (1 + offset % 13)


def _open(path: Path) -> tuple[LogDirectory, PartitionLog]:
    directory = LogDirectory.open(path, files=OsLogFiles(), now_ms=lambda: time.time_ns() // 1_000_000)
    return directory, directory.open_log(PARTITION, SETTINGS)


def _write_until_killed(path: Path, kill_after: int, *, codec: int) -> int:
    """Return up to where the child's appends were acknowledged."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _write(path, writing, codec)
    os.close(writing)
    acknowledged = 0
    while data := os.read(reading, _END.size):  # writes of so few bytes are whole
        (acknowledged,) = _END.unpack(data)
        kill_after -= 1
        if not kill_after:
            os.kill(child, signal.SIGKILL)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit(f"the writer ended with status {status} before it was killed")
    return acknowledged


def _write(path: Path, acks: int, codec: int) -> None:
    """Append for ever; the process ends here in any case."""
    try:
        directory, log = _open(path)
        for number in range(1 << 40):
            end = log.end_offset
            values = [value_at(offset) for offset in range(end, end + 1 + number % 40)]
            log.append(record_set(values, codec=codec))
            os.write(acks, _END.pack(log.end_offset))
            if number % 50 == 49:
                log.apply_retention()
                directory.write_checkpoints()
    finally:
        os._exit(1)


def _check(path: Path, acknowledged: int) -> int:
    """Open what was left and compare; returns where the log ends. The log is left as it was opened."""
    directory, log = _open(path)
    assert acknowledged <= log.end_offset, f"{acknowledged} was acknowledged, {log!r}"
    offset = log.start_offset
    for record in read_records(log, max_bytes=20_000):
        assert (offset, value_at(offset)) == (record.offset, record.value)
        offset += 1
    assert log.end_offset == offset
    check_folder(OsLogFiles(), log.folder, indexed=False)
    log.discard()  # not closed: the next one has to check, too
    with contextlib.suppress(ExceptionGroup):
        directory.close()
    return offset


if __name__ == "__main__":
    main()
