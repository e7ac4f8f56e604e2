# SPDX-License-Identifier: Apache-2.0
"""Raw socket on a broker of Kafka 0.7: one MULTIFETCH after the other.

Each is of 8 MB, whose bytes are not looked at. The next request is sent when a response is received, as by any
client: only the last message tells the next offset.
"""

from __future__ import annotations

from bench.legacy_connection import LegacyConnection
from bench.readers.telling import Teller, run_loop


def consume(bootstrap: str, topic: str, records: int) -> None:
    """Read the topic to its end; records are counted by their share of the bytes."""
    with LegacyConnection(bootstrap, topic) as connection:
        teller, end, offset = Teller(), connection.find_end(), 0
        while offset < end:
            connection.ask(offset)
            offset += len(connection.receive_messages(connection.receive_head()))
            teller.reach(offset * records // end)
        teller.finish()


if __name__ == "__main__":
    run_loop(__doc__, consume)
