# SPDX-License-Identifier: Apache-2.0
"""Raw socket on a broker of Kafka 0.7 that pipelines its requests.

Each is a MULTIFETCH of 8 MB, whose bytes are not looked at. The next request is sent as soon as the size of a
response is known, so the rate is the most that the broker serves to one connection. Requests begin anywhere inside of
messages, which is no error to the broker.
"""

from __future__ import annotations

from bench.legacy_connection import LegacyConnection
from bench.readers.telling import Teller, run_loop


def consume(bootstrap: str, topic: str, records: int) -> None:
    """Read the topic to its end; records are counted by their share of the bytes."""
    with LegacyConnection(bootstrap, topic) as connection:
        teller, end, offset = Teller(), connection.find_end(), 0
        connection.ask(offset)
        while offset < end:
            size = connection.receive_head()
            offset += size
            if offset < end:
                connection.ask(offset)
            connection.receive_messages(size)
            teller.reach(offset * records // end)
        teller.finish()


if __name__ == "__main__":
    run_loop(__doc__, consume)
