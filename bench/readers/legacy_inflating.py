# SPDX-License-Identifier: Apache-2.0
"""Raw socket on a broker of Kafka 0.7 that decompresses gzip messages with isal.

Requests are those of ``legacy_socket``. Nothing else is done with the bytes, so the rate is the most that one core
can decompress.
"""

from __future__ import annotations

import struct
from typing import Final

from isal import isal_zlib

from bench.legacy_connection import LegacyConnection
from bench.readers.telling import Teller, run_loop

_LENGTH: Final = struct.Struct(">i")
_HEAD_BYTES: Final = 10
_LENGTH_BYTES: Final = 4


def inflate_all(data: memoryview) -> int:
    """Decompress all whole messages of a message set; return their size in bytes."""
    at = 0
    while len(data) - at >= _HEAD_BYTES:
        stop = at + _LENGTH_BYTES + _LENGTH.unpack_from(data, at)[0]
        if stop > len(data):
            break
        isal_zlib.decompress(data[at + _HEAD_BYTES : stop], 31)
        at = stop
    return at


def consume(bootstrap: str, topic: str, records: int) -> None:
    """Read the topic to its end; records are counted by their share of the bytes."""
    with LegacyConnection(bootstrap, topic) as connection:
        teller, end, offset = Teller(), connection.find_end(), 0
        while offset < end:
            connection.ask(offset)
            offset += inflate_all(connection.receive_messages(connection.receive_head()))
            teller.reach(offset * records // end)
        teller.finish()


if __name__ == "__main__":
    run_loop(__doc__, consume)
