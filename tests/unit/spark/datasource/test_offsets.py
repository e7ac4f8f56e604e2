# SPDX-License-Identifier: Apache-2.0
"""Offsets as JSON: what Spark's own source writes is read, anything else is refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.errors import ConfigError
from consumerd.model import BrokerId, PartitionKey, TopicPartition
from consumerd.spark.datasource.offsets import from_json, parse_assignment, parse_offsets, to_json

keys = st.builds(PartitionKey, st.integers(0, 5000), st.none() | st.integers(0, 5000).map(BrokerId))
partitions = st.builds(TopicPartition, st.from_regex(r"\A[a-z][a-z0-9._-]{0,20}\Z"), keys)


@given(st.dictionaries(partitions, st.integers(0, (1 << 63) - 1)))
def test_what_is_written_is_read_again(offsets: dict[TopicPartition, int]) -> None:
    """A checkpoint gives back what was put into it, through JSON's text."""
    assert offsets == from_json(json.loads(json.dumps(to_json(offsets))), what="checkpoint")


def test_partitions_stand_in_the_order_of_their_numbers() -> None:
    """So that two checkpoints can be compared by eye."""
    offsets = {TopicPartition.modern("t", 10): 1, TopicPartition.modern("t", 9): 2, TopicPartition.modern("a", 0): 3}
    assert json.dumps(to_json(offsets)) == '{"a": {"0": 3}, "t": {"9": 2, "10": 1}}'


def test_partitions_of_kafka_0_7_are_named_by_broker_and_number() -> None:
    """In offsets as a key, and in an assignment as a text among numbers."""
    first, second = (TopicPartition("t", PartitionKey(number, BrokerId(1))) for number in (0, 12))
    assert parse_offsets('{"t": {"1-0": 1234, "1-12": -2}}', what="x", least=-2) == {first: 1234, second: -2}
    assert to_json({first: 1234, second: 5}) == {"t": {"1-0": 1234, "1-12": 5}}
    assert parse_assignment('{"t": ["1-12", "1-0"]}', what="x") == [first, second]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "x: not JSON that can be used"),
        ("[]", 'x: expected {"topic": {"0": 23}}, got []'),
        ("{}", "x: no partition is named"),
        ('{"t": 5}', 'x: t: expected {"0": 23}, got 5'),
        ('{"t": {"a": 5}}', "x: t: expected a partition's number, got 'a'"),
        ('{"t": {"0": 5, "00": 6}}', "x: t: expected a partition's number, got '00'"),
        ('{"t": {"2147483648": 5}}', "x: t: expected a partition's number, got '2147483648'"),
        (f'{{"t": {{"{"9" * 5000}": 5}}}}', "x: t: expected a partition's number, got '999"),
        ('{"t": {"0": "5"}}', "x: t/0: expected a number from -2 on, got '5'"),
        ('{"t": {"0": true}}', "x: t/0: expected a number from -2 on, got True"),
        ('{"t": {"0": 1.5}}', "x: t/0: expected a number from -2 on, got 1.5"),
        ('{"t": {"0": -3}}', "x: t/0: expected a number from -2 on, got -3"),
        ('{"t": {"0": 9223372036854775808}}', "x: t/0: expected a number from -2 on"),
        ('{"a b": {"0": 1}}', "x: 'a b' has other characters"),
        ('{"t": {"0": 1, "0": 2}}', "x: not JSON that can be used: '0' stands there twice"),
        ("[" * 100_000, "x: not JSON that can be used"),
    ],
)
def test_what_is_no_offsets_is_refused(text: str, said: str) -> None:
    """Topic and partition are named where there is one."""
    with pytest.raises(ConfigError) as caught:
        parse_offsets(text, what="x", least=-2)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"t": 5}', "x: t: expected a list of partitions, got 5"),
        ('{"t": ["0"]}', "x: t: expected a partition's number, got '0'"),
        ('{"t": [true]}', "x: t: expected a partition's number, got True"),
        ('{"t": ["0-01"]}', "x: t: expected a partition's number, got '0-01'"),
        ('{"t": [-1]}', "x: t: expected a partition's number, got '-1'"),
        ('{"t": []}', "x: no partition is named"),
        ("5", 'x: expected {"topic": [0, 1]}, got 5'),
    ],
)
def test_what_is_no_assignment_is_refused(text: str, said: str) -> None:
    """The same for lists of partitions."""
    with pytest.raises(ConfigError) as caught:
        parse_assignment(text, what="x")
    assert said in str(caught.value)
