# SPDX-License-Identifier: Apache-2.0
"""What the parts say becomes rows beside their targets."""

from __future__ import annotations

from bench.cases import Part
from bench.parts import PARTS, latency_row, rebalance_rows

PRINTED = """2 cores, Python 3.11.7
consumerd, round 1: all claimed 2.51 s after the join; 200 partitions moved, 800 stayed, 800 of them untouched
    2914 requests (create 400, getData 2514)
    gaps between batches of partitions that stayed, before (3.5 s): longest 120 ms, p99 110 ms
    gaps between batches of partitions that stayed, during (3.5 s): longest 240 ms, p99 115 ms
consumerd, round 2: all claimed 2.11 s after the join; 200 partitions moved, 800 stayed, 800 of them untouched
    2900 requests (create 400, getData 2500)
    gaps between batches of partitions that stayed, before (3.1 s): longest 130 ms, p99 110 ms
    gaps between batches of partitions that stayed, during (3.1 s): none
Java high-level consumer: all claimed 9.80 s after the join; 200 partitions moved, 800 stayed, 0 of them untouched
    21030 requests (create 2000)
    members that have given up at some time: 0
"""


def test_each_part_is_measured_by_something() -> None:
    """A name without one would fail at the end of an hour."""
    assert set(Part) == set(PARTS)


def test_a_rebalance_in_rows() -> None:
    """Time, what stayed, and requests beside Java's."""
    claimed, stayed, requests = rebalance_rows(PRINTED, 1000)
    assert (claimed.figure, claimed.met) == ("**2.31 s** (2.11 to 2.51)", True)
    assert (stayed.figure, stayed.met) == ("**all untouched**; 130 ms, 240 ms", True)
    assert (requests.figure, requests.target, requests.met) == ("**2907**", "Java high-level consumer: 21030", True)


def test_one_node_that_was_made_again_is_said() -> None:
    """Of any round."""
    _, stayed, _ = rebalance_rows(PRINTED.replace("800 of them", "799 of them", 1), 1000)
    assert not stayed.met


def test_a_latency_is_met_when_no_peer_is_below() -> None:
    """Medians of the rounds."""
    row = latency_row("p50", {"consumerd": [1.0, 3.0, 2.0], "aiokafka": [2.5, 2.5, 9.0], "Java": [2.0, 2.0, 2.0]})
    assert (row.figure, row.target, row.met) == (
        "**2.00 ms** (1.00 to 3.00)",
        "aiokafka: 2.50 ms and Java: 2.00 ms",
        True,
    )
    assert not latency_row("p50", {"consumerd": [2.1], "aiokafka": [2.0]}).met
