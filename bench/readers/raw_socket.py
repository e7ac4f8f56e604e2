# SPDX-License-Identifier: Apache-2.0
"""Raw socket: pipelined fetches of 8 MB, of which only the batch headers are read.

Its rate is the most that the broker serves to one connection.
"""

from __future__ import annotations

from bench.pipelined import Connection
from bench.readers.telling import Teller, run_loop


def consume(bootstrap: str, topic: str, records: int) -> None:
    """Read ``records`` records of the topic from its beginning."""
    with Connection(bootstrap, topic) as connection:
        teller = Teller()
        connection.read_all(records, teller.reach)


if __name__ == "__main__":
    run_loop(__doc__, consume)
