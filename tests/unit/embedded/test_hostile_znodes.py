# SPDX-License-Identifier: Apache-2.0
"""What the embedded broker reads in ZooKeeper, where anybody may write."""

from __future__ import annotations

import pytest

from consumerd.embedded.znodes import next_epoch, next_producer_ids, parse_controller_epoch
from consumerd.zk.znodes import parse_topic_settings

NESTED = b"[" * 100_000
DIGITS = b"9" * 5_000


@pytest.mark.parametrize("data", [b"", b"\xff", NESTED, b"[]", b'{"config":[]}', b'{"config":' + NESTED, DIGITS])
def test_settings_that_cannot_be_read_are_none(data: bytes) -> None:
    """A topic is served with the broker's own settings then; the broker must outlive the node."""
    assert parse_topic_settings(data) == {}


@pytest.mark.parametrize(
    "data",
    [b"", NESTED, b"[]", DIGITS, b'{"block_end":' + DIGITS + b"}", b'{"block_end":"-5"}', b'{"block_end":1e400}',
     b'{"block_end":"%d"}' % 2**63],
)  # fmt: skip
def test_blocks_that_cannot_be_read_begin_anew(data: bytes) -> None:
    """Producer ids are numbers of 64 bits."""
    assert next_producer_ids(data) == 0


@pytest.mark.parametrize("data", [b"", b"-1", DIGITS, b"1e3", b"%d" % 2**31, NESTED])
def test_controller_epochs_that_are_none_count_as_the_first(data: bytes) -> None:
    """Requests carry the epoch in 32 bits."""
    assert parse_controller_epoch(data) == 1


def test_epochs_never_leave_their_32_bits() -> None:
    """One that did could be read by no broker any more."""
    assert [next_epoch(one) for one in (-1, 0, 7, 2**31 - 2, 2**31 - 1)] == [1, 1, 8, 2**31 - 1, 2**31 - 1]
