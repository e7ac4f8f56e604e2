# SPDX-License-Identifier: Apache-2.0
"""The options of ``consumerd tail``, and what it says when nothing can be shown."""

from __future__ import annotations

import pytest

from consumerd.admin.tail_partition import TailOutcome
from consumerd.admin.tail_range import AtOffset, AtTime, End, LastRecords, LogEdge, OutsideLog, Start
from consumerd.cli.main import CONFIGURATION, UNREACHABLE, main, make_parser
from consumerd.cli.tail import judge, make_request, parse_start, parse_until
from consumerd.errors import ConfigError, RequestTimedOut
from consumerd.model import TopicPartition
from tests.support.kafka import free_port

P = TopicPartition.modern("t", 0)
NOON_MS = 1714564800000


def request(line: str):
    return make_request(make_parser().parse_args(["tail", "orders", *line.split()]))


@pytest.mark.parametrize(
    ("line", "start", "end"),
    [
        ("", LastRecords(10), None),
        ("--from EARLIEST", LogEdge.EARLIEST, None),
        ("--from latest --until LATEST", LogEdge.LATEST, None),
        ("--from 4711 --until 4712", AtOffset(4711), AtOffset(4712)),
        ("--from 0", AtOffset(0), None),
        ("--from -25", LastRecords(25), None),
        ("--from=-25", LastRecords(25), None),
        ("--at 2024-05-01T12:00:00Z --until 2024-05-01T14:00:00+02:00", AtTime(NOON_MS), AtTime(NOON_MS)),
        ("--at 1714564800000", AtTime(NOON_MS), None),
        ("--at 2024-05-01T12:00:00", AtTime(NOON_MS), None),
    ],
)
def test_starts_and_ends_are_read(line: str, start: Start, end: End | None) -> None:
    """A minus is no option of its own, and a time without a zone is UTC."""
    asked = request(line)
    assert (asked.start, asked.end) == (start, end)


def test_the_other_options_are_read() -> None:
    """Partitions may be repeated."""
    asked = request("clicks --partition 3 --partition 0 --count 5 -f --timeout 2")
    assert asked.topics == ["orders", "clicks"]
    assert (asked.partitions, asked.count, asked.follow, asked.patience_s) == ({0, 3}, 5, True, 2.0)


@pytest.mark.parametrize("text", ["", "first", "-0", "-1000001", "2024-05-01", "1.5", "--1", "99999999999999999999"])
def test_what_is_no_start_is_refused_with_what_is(text: str) -> None:
    """A time goes with another option."""
    with pytest.raises(ConfigError, match=r"^--from .*EARLIEST"):
        parse_start(text)


@pytest.mark.parametrize("text", ["", "-5", "EARLIEST", "tomorrow"])
def test_what_is_no_end_is_refused_with_what_is(text: str) -> None:
    """An end counted backwards would be another thing in each partition."""
    with pytest.raises(ConfigError, match=r"^--until .*expected an offset, LATEST, or a time"):
        parse_until(text)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--at yesterday", "--at 'yesterday': expected a time such as 2024-05-01T12:00:00Z"),
        ("--at 20240501", "--at: 20240501: as ms since 1970 that is before the first Kafka"),
        ("--follow --until LATEST", "leave out one of them"),
        ("", "cluster"),
    ],
)
def test_mistakes_are_told_before_anything_is_connected(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and what to write."""
    assert main(["tail", "orders", *line.split()]) == CONFIGURATION
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("line", ["--from 1 --at 2024-05-01", "--partition=-1", "--count 0", "--format xml", ""])
def test_options_that_mean_nothing_are_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also no topic at all."""
    topics = ["orders"] if line else []
    with pytest.raises(SystemExit) as refused:
        make_parser().parse_args(["tail", *topics, *line.split()])
    assert refused.value.code == 2
    assert "consumerd tail: error: " in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Within the time limit."""
    assert main(["tail", "orders", "-z", f"127.0.0.1:{free_port()}", "--timeout", "1"]) == UNREACHABLE
    assert "no ZooKeeper answers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shown", "failures", "damaged", "code"),
    [
        (5, [], 0, 0),
        (0, [], 0, 0),
        (5, [], 1, 1),
        (0, [OutsideLog(P, 5, 0, 1)], 0, 1),
        (5, [RequestTimedOut("no leader")], 0, 1),
        (0, [RequestTimedOut("no leader")], 0, 3),
        (0, [RequestTimedOut("no leader"), OutsideLog(P, 5, 0, 1)], 0, 1),
    ],
)
def test_exit_codes_tell_what_was_not_shown(shown: int, failures: list, damaged: int, code: int) -> None:
    """A script must not take a part for the whole."""
    assert judge(TailOutcome(shown=shown, failures=failures, damaged=damaged)) == code
