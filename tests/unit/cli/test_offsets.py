# SPDX-License-Identifier: Apache-2.0
"""What is typed to move positions: read as it is meant, or refused with what to type instead."""

import time

import pytest

from consumerd.admin.cancellation import choose
from consumerd.admin.offsets_export import ExportedOffset, OffsetsExport, split_orphans
from consumerd.admin.operations import Target
from consumerd.cli.main import make_parser
from consumerd.cli.offsets import parse_target, parse_time
from consumerd.errors import ConfigError, NotFound
from consumerd.model import PartitionKey, TopicPartition


@pytest.mark.parametrize(
    ("text", "topic", "key", "position"),
    [
        ("orders/0=4200", "orders", "0", 4200),
        ("web.clicks-eu/12=0", "web.clicks-eu", "12", 0),
        ("orders/1-0=9", "orders", "1-0", 9),
        ("orders/0=9223372036854775807", "orders", "0", 2**63 - 1),
    ],
)
def test_a_target_names_a_partition_and_the_next_offset(text, topic, key, position):
    """Both generations' partitions, any offset that there can be."""
    assert parse_target(text) == Target(partition=TopicPartition(topic, PartitionKey.parse(key)), position=position)


@pytest.mark.parametrize(
    "text",
    [
        "orders",
        "orders=5",
        "orders/0",
        "orders/0=",
        "orders/0=-1",
        "orders/0=1e3",
        "orders/0=\u0663",
        "orders/0=9223372036854775808",
        "orders/x=5",
        "/0=5",
        "=5",
    ],
)
def test_what_is_no_target_is_refused_by_what_was_typed(text):
    """A typing error must not move anything."""
    with pytest.raises(ConfigError) as refused:
        parse_target(text)
    assert text.rpartition("=")[0] in str(refused.value)


@pytest.mark.parametrize(("text", "by"), [("+5", 5), ("-5", -5), ("5", 5)])
def test_a_shift_has_a_direction(text: str, by: int) -> None:
    """argparse must not take a negative number for an option."""
    args = make_parser().parse_args(["offsets", "shift", "orders", "--by", text])
    assert args.by == by


@pytest.mark.parametrize("text", ["0", "+0", "", "+", "--5", "1e3", "\u0663", "99999999999999999999"])
def test_what_is_no_distance_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A typing error must not move anything."""
    with pytest.raises(SystemExit):
        make_parser().parse_args(["offsets", "shift", "orders", f"--by={text}"])
    assert "expected +N or -N" in capsys.readouterr().err


@pytest.fixture
def far_east(monkeypatch):
    """A machine whose zone is far from UTC."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("1714521600000", 1714521600000),
        ("2024-05-01", 1714521600000),
        ("2024-05-01T00:00:00", 1714521600000),
        ("2024-05-01T00:00:00Z", 1714521600000),
        ("2024-05-01T02:00:00+02:00", 1714521600000),
        ("2024-05-01T00:00:00.250Z", 1714521600250),
    ],
)
def test_a_time_without_a_zone_is_utc(text, expected, far_east):
    """The machine's own zone would make the same command mean different things."""
    assert parse_time(text) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "-1", "2024-13-01", "1969-12-31", "Earliest", "12:00"])
def test_what_is_no_time_is_refused(text):
    """With what is expected."""
    with pytest.raises(ConfigError, match="expected earliest, latest, a time"):
        parse_time(text)


@pytest.mark.parametrize("text", ["20240501", "1714521600", "2024"])
def test_a_date_without_hyphens_and_seconds_are_not_taken_for_milliseconds(text):
    """They would mean January 1970, and so the beginning of the log."""
    with pytest.raises(ConfigError, match="before the first Kafka; write a date as 2024-05-01"):
        parse_time(text)
    assert parse_time("0") == 0


def test_positions_of_topics_that_were_gone_at_the_export_do_not_come_back():
    """Else one leftover of a deleted topic keeps a whole group's positions from being set again."""
    orders, gone, more = (
        ExportedOffset(topic=topic, partition=partition, position=4, incarnation=incarnation)
        for topic, partition, incarnation in (("orders", "0", "36"), ("old", "0", None), ("old", "1", None))
    )
    export = OffsetsExport(group="lake", cluster="9-1", exported_ms=1, offsets=[gone, orders, more])

    assert split_orphans(export) == ([orders], ["old"])


def test_what_is_cancelled_is_what_was_named():
    """A name without a request is told: it may be misspelt."""
    waiting = [TopicPartition.modern("a", 0), TopicPartition.modern("a", 1), TopicPartition.modern("b", 0)]

    assert waiting == choose(waiting, [])
    assert waiting[:2] == choose(waiting, ["a"])
    assert [waiting[1], waiting[2]] == choose(waiting, ["a/1", "b", "b/0"])
    for wrong in ("c", "a/7"):
        with pytest.raises(NotFound, match=f"{wrong}: there is no request"):
            choose(waiting, [wrong])
    with pytest.raises(ConfigError, match="a/x"):
        choose(waiting, ["a/x"])
