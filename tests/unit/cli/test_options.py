# SPDX-License-Identifier: Apache-2.0
"""Numbers on the command line: a sign or a zero in the wrong place is refused before anything is asked of a cluster.

And options that are short for settings.
"""

from pathlib import Path

import pytest

from consumerd.cli.main import main, make_parser

ACCEPTED = [
    ("lag --watch 0.5", "watch", 0.5),
    ("lag --timeout 2", "timeout", 2.0),
    ("offsets set t/0=1 --wait 0", "wait", 0.0),
    ("explain-rebalance --replicas 0", "replicas", 0),
    ("explain-rebalance --streams 2", "streams", 2),
    ("quarantine show --bytes 0 t/0@1", "bytes", 0),
    ("broker --port 65535", "port", 65535),
    ("broker --topic orders:3", "topics", [("orders", 3)]),
    ("broker --topic orders", "topics", [("orders", None)]),
]
REFUSED = [
    "lag --watch 0",
    "lag --watch=-1",
    "lag --watch nan",
    "topics --timeout 0",
    "topics --timeout inf",
    "offsets set t/0=1 --wait=-1",
    "explain-rebalance --replicas=-1",
    "explain-rebalance --streams 0",
    "explain-rebalance --java-retries x",
    "quarantine show --bytes=-1 t/0@1",
    "broker --port 65536",
    "broker --topic orders:0",
    "broker --topic :3",
    "broker --as-release 0.7",
    "broker --message-format 3",
]


@pytest.mark.parametrize(("line", "name", "value"), ACCEPTED)
def test_numbers_that_mean_something_are_taken(line: str, name: str, value: object) -> None:
    """Nothing to wait for, and no replica more, are answers too."""
    assert getattr(make_parser().parse_args(line.split()), name) == value


@pytest.mark.parametrize("line", REFUSED)
def test_numbers_that_mean_nothing_are_refused_by_name(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``lag --watch 0`` would ask the cluster without a pause."""
    with pytest.raises(SystemExit) as refused:
        make_parser().parse_args(line.split())
    assert refused.value.code == 2
    assert "argument --" in capsys.readouterr().err


def test_run_takes_the_cluster_and_the_group_as_the_other_commands_do(capsys: pytest.CaptureFixture[str]) -> None:
    """Who has looked with ``lag --zookeeper ... --group ...`` writes the same once more."""
    code = main(["check-config", "--zookeeper", "zk7:2181/kafka", "-g", "lake", "--topics", "orders"])

    assert code == 0
    assert "group lake at zk7:2181/kafka" in capsys.readouterr().out
    assert make_parser().parse_args(["run", "-z", "zk7:2181", "--group", "lake"]).zookeeper == "zk7:2181"


def test_cluster_and_group_of_the_command_line_win_over_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As any other option does; the rest of the file's section stays."""
    file = tmp_path / "config.yaml"
    file.write_text("cluster: {zookeeper: 'zk:2181', connect_timeout_ms: 5s}\ngroup: {id: a, streams: 2}\n")

    assert main(["check-config", "-c", str(file), "-z", "zk7:2181", "-g", "lake", "--topics", "orders"]) == 0
    assert "group lake at zk7:2181, 2 streams" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "usage", "said"),
    [
        ("topcs", "consumerd", "did you mean topics?"),
        ("offsets rest", "consumerd offsets", "did you mean reset?"),
        ("lag --gruop g", "consumerd lag", "unrecognized arguments: --gruop; did you mean --group?"),
        ("lag --zokeeper=z", "consumerd lag", "unrecognized arguments: --zokeeper=z; did you mean --zookeeper?"),
        ("offsets set t/0=1 --dryrun", "consumerd offsets set", "did you mean --dry-run?"),
        ("produce t --codec gzp", "consumerd produce", "did you mean gzip?"),
        ("lag --purple", "consumerd lag", "unrecognized arguments: --purple"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_one_that_was_meant(
    line: str, usage: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the usage of the command in question."""
    with pytest.raises(SystemExit) as ended:
        main(line.split())

    shown = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert shown[0].startswith(f"usage: {usage} [-h]")
    assert shown[-1].startswith(f"{usage}: error: ")
    assert shown[-1].endswith(said)
