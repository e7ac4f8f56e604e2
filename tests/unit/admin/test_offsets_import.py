# SPDX-License-Identifier: Apache-2.0
"""Positions of files that other tools have written: read as they are meant, or refused with the place."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.admin.offsets_export import ExportedOffset, OffsetsExport, encode_export
from consumerd.admin.offsets_import import parse_offsets
from consumerd.admin.operations import Target
from consumerd.admin.targets import clamp_shift, collect_targets
from consumerd.errors import ConfigError
from consumerd.model import LogRange, PartitionKey, TopicPartition

P, Q = (TopicPartition.modern("orders", number) for number in range(2))


def targets(**positions: int) -> tuple[Target, ...]:
    return tuple(
        Target(partition=TopicPartition.modern(topic, 0), position=position) for topic, position in positions.items()
    )


def test_an_own_document_keeps_where_it_comes_from() -> None:
    """It alone tells its cluster, and topics that were deleted before."""
    export = OffsetsExport(
        group="g",
        cluster="1-2",
        exported_ms=1,
        offsets=[
            ExportedOffset(topic="orders", partition="0", position=5, incarnation="7"),
            ExportedOffset(topic="gone", partition="0", position=9, incarnation=None),
        ],
    )

    found = parse_offsets(encode_export(export), "f", "another")

    assert found.targets == targets(orders=5)
    assert (found.orphaned, found.export) == (("gone",), export)


@pytest.mark.parametrize(
    "text",
    [
        "orders,0,42\nclicks,0,7\n",
        '"orders",0,42\r\n"clicks",0,7\r\n',
        "\norders, 0, 42\n\nclicks,0,7",
        "g,orders,0,42\ng,clicks,0,7\n",
        '"g","orders",0,42\n"g","clicks",0,7\n',
        "/consumers/g/offsets/orders/0:42\n/consumers/g/offsets/clicks/0:7\n",
        "/consumers/g/offsets/orders/0:42\n\n  /consumers/g/offsets/clicks/0:7",
    ],
)
def test_lines_of_kafkas_tools_are_read(text: str) -> None:
    """With blanks, quotation marks and line ends of other systems."""
    found = parse_offsets(text, "f", "g")

    assert found.targets == targets(orders=42, clicks=7)
    assert found.export is None


@pytest.mark.parametrize(
    "text",
    ["g,orders,0,42\nother,orders,0,7\n", "/consumers/other/offsets/orders/0:7\n/consumers/g/offsets/orders/0:42\n"],
)
def test_of_several_groups_only_ours_is_read(text: str) -> None:
    """The tool writes all groups into one file."""
    found = parse_offsets(text, "f", "g")

    assert found.targets == targets(orders=42)
    assert found.left_out == {"other": 1}
    with pytest.raises(ConfigError, match="no positions of group 'third'; those in it: g, other"):
        parse_offsets(text, "f", "third")


def test_a_group_can_be_copied_under_another_name() -> None:
    """As with a document of ours."""
    assert parse_offsets("/consumers/old/offsets/orders/0:42", "f", "new").targets == targets(orders=42)


def test_a_partition_of_0_7_is_read_as_it_is_named() -> None:
    """A cluster of 0.8 says that there is no such partition; its positions would count bytes."""
    (found,) = parse_offsets("/consumers/g/offsets/orders/1-0:286894308", "f", "g").targets

    assert found == Target(partition=TopicPartition("orders", PartitionKey.parse("1-0")), position=286894308)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f: expected JSON"),
        ("[]", "f: expected a document"),
        ("orders/0=5\n", "f: line 1: expected a document of"),
        ("orders,0,5\norders,1\n", "f: line 2: expected a document of"),
        ("TOPIC,PARTITION,OFFSET\n", "f: line 1: offset: expected a number from 0 on, got 'OFFSET'"),
        ("orders,0,-1\n", "got '-1'"),
        ("orders,0,9223372036854775808\n", "got '9223372036854775808'"),
        ("orders,0,\u0663\n", "expected a number from 0 on"),
        ("orders,x,5\n", "f: line 1: "),
        (",0,5\n", "f: line 1: the topic is missing"),
        ('"orders,0,5\n', "f: line 1: "),
        ("/consumers/g/owners/orders/0:5\n", "f: line 1: expected a document of"),
        ("/consumers/g/offsets/orders/0\n", "f: line 1: "),
        ("/consumers/g/offsets/orders/0:5\norders,0,5\n", "f: line 2: "),
    ],
)
def test_what_is_no_position_is_refused_with_its_line(text: str, said: str) -> None:
    """Half a file must not be set."""
    with pytest.raises(ConfigError) as refused:
        parse_offsets(text, "f", "g")

    assert said in str(refused.value)


@given(text=st.text() | st.lists(st.text('/:,"0123456789oc\n'), max_size=20).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    """A file of another kind must not end in a traceback."""
    found: tuple[Target, ...] = ()
    with contextlib.suppress(ConfigError):
        found = parse_offsets(text, "f", "g").targets

    assert all(target.position >= 0 for target in found)


def test_a_partition_is_set_once() -> None:
    """On the command line and in the file, or twice in the file."""
    twice = parse_offsets("orders,0,5\norders,0,6\n", "f", "g")
    once = parse_offsets("orders,0,5\n", "f", "g")

    with pytest.raises(ConfigError, match="orders/0 is named twice"):
        collect_targets([], twice)
    with pytest.raises(ConfigError, match="orders/0 is named twice"):
        collect_targets([Target(partition=P, position=1)], once)
    assert collect_targets([Target(partition=Q, position=1)], once) == [
        Target(partition=Q, position=1),
        Target(partition=P, position=5),
    ]


def test_a_document_of_a_newer_release_is_refused_as_before() -> None:
    """The reader of one format decides about it, not the one of lines."""
    with pytest.raises(ConfigError, match="newer release"):
        parse_offsets(json.dumps({"format": "consumerd offsets", "version": 9}), "f", "g")


@pytest.mark.parametrize(
    ("position", "by", "target", "said"),
    [
        (4200, -1000, 3200, ""),
        (4200, 800, 5000, ""),
        (4200, -5000, 120, "orders/0: -800 is outside the log [120, 5000]; moved to its beginning"),
        (4200, 801, 5000, "orders/0: 5001 is outside the log [120, 5000]; moved to its end"),
        (50, 10, 120, "orders/0: 60 is outside the log [120, 5000]; moved to its beginning"),
        (9000, -1, 5000, "orders/0: 8999 is outside the log [120, 5000]; moved to its end"),
    ],
)
def test_a_shift_ends_at_the_ends_of_the_log(position: int, by: int, target: int, said: str) -> None:
    """A position outside the log would be reset by a policy, to where nobody asked for."""
    assert clamp_shift(P, position, by, LogRange(earliest=120, latest=5000)) == (target, said)
