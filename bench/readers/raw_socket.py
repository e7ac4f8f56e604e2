# SPDX-License-Identifier: Apache-2.0
"""The raw socket: what a broker gives to whoever asks for the next 8 MB in time and does nothing with them."""

from __future__ import annotations

from bench.pipelined import Connection
from bench.readers.telling import Teller, run_loop


def consume(bootstrap: str, topic: str, records: int) -> None:
    """Read all of it."""
    with Connection(bootstrap, topic) as connection:
        teller = Teller()
        connection.read_all(records, teller.reach)


if __name__ == "__main__":
    run_loop(__doc__, consume)
