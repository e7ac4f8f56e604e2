# SPDX-License-Identifier: Apache-2.0
"""``consumerd``: parses the command line and turns errors into exit codes.

Exit codes: 0 done; 1 failed, or refused by ZooKeeper; 2 configuration error; 3 a one-shot command could not reach
ZooKeeper or a broker. Some commands have further meanings of 1, which their functions describe.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Final

from consumerd import __version__
from consumerd.aio.loops import find_uvloop
from consumerd.cli import inspection, running
from consumerd.cli.broker import add_broker_command
from consumerd.cli.demo import add_demo_command
from consumerd.cli.doctor import add_doctor_command
from consumerd.cli.groups import add_groups_command
from consumerd.cli.identities import add_identities_command
from consumerd.cli.installation import add_version_command
from consumerd.cli.migrate import add_migrate_commands
from consumerd.cli.mirror import add_mirror_command, mirror
from consumerd.cli.offsets import add_offset_commands
from consumerd.cli.options import (
    add_connection_options,
    add_daemon_options,
    count,
    positive_count,
    positive_seconds,
)
from consumerd.cli.parser import HintingParser
from consumerd.cli.produce import add_produce_command
from consumerd.cli.quarantine import add_quarantine_command
from consumerd.cli.tail import add_tail_command
from consumerd.errors import ConfigError, ConnectionLost, ConsumerdError, CoordinationError
from consumerd.telemetry.logs import configure_logging
from consumerd.telemetry.text_tables import escape_unprintable
from consumerd.zk.port import RequestRefused

DONE: Final = 0
FAILED: Final = 1
CONFIGURATION: Final = 2
UNREACHABLE: Final = 3

_DAEMONS: Final = (running.run, mirror)
"""Commands that run until a signal stops them."""

_EPILOG: Final = """\
first steps:
  consumerd demo                                          all of it, with a cluster of its own
  consumerd topics --zookeeper zk1:2181/kafka             what is there
  consumerd groups --zookeeper zk1:2181/kafka             all groups, with members and lag
  consumerd lag --zookeeper zk1:2181/kafka --group G      how far a group is, ours or a Java one
  echo hello | consumerd produce T --zookeeper zk1:2181/kafka
                                                          a record, so that there is something
  consumerd tail T --zookeeper zk1:2181/kafka             the last records of each partition
  consumerd doctor --zookeeper zk1:2181/kafka --group G   what is wrong with it, and what to do
  consumerd run --zookeeper zk1:2181/kafka --group try --topics orders
                                                          records to stdout, as JSON lines
  consumerd run --config config.yaml                      the daemon
  consumerd mirror --zookeeper zk1:2181/kafka --topics orders --bootstrap new1:9092
                                                          topics into another cluster, exactly once
  consumerd version --json                                what to put into a bug report

exit codes: 0 done, 1 failed, 2 configuration, 3 could not reach ZooKeeper or a broker (one-shot commands)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of the command line, and return the exit code.

    Args:
        arguments: Arguments after the program's name; None for those of the process.
    """
    args = make_parser().parse_args(arguments)
    configure_logging("warning")  # `run` sets its own, once it has its settings
    try:
        with asyncio.Runner(loop_factory=find_uvloop() if args.command in _DAEMONS else None) as runner:
            code = runner.run(args.command(args))
        sys.stdout.flush()
    except ConfigError as error:
        return _fail(str(error), CONFIGURATION)
    except RequestRefused as error:
        return _fail(str(error), FAILED)  # ZooKeeper was reached, and said no: an ACL, most often
    except (CoordinationError, ConnectionLost, TimeoutError) as error:
        return _fail(str(error) or "no answer in time; raise --timeout", UNREACHABLE)
    except ConsumerdError as error:
        return _fail(str(error), FAILED)
    except BrokenPipeError:
        # the reader of our output (head, less) has gone; keep the interpreter from flushing into the closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    return int(code)


def _fail(message: str, code: int) -> int:
    for line in message.splitlines():
        sys.stderr.write(f"consumerd: {escape_unprintable(line)}\n")
    return code


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser: argparse.ArgumentParser = HintingParser(
        prog="consumerd",
        description="A consumer-group daemon for ZooKeeper-era Kafka clusters.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"consumerd {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = commands.add_parser(
        "run",
        help="consume as a member of the group until SIGTERM or Ctrl-C",
        description=(
            "Register in the group, consume the partitions assigned to this process, and deliver them to the sinks. "
            "SIGTERM and Ctrl-C drain: flush, commit, release, leave. A second one stops at once."
        ),
    )
    add_daemon_options(run)
    run.set_defaults(command=running.run)

    check = commands.add_parser(
        "check-config",
        help="check the settings; connects to nothing",
        description=(
            "Check the settings of `run`, and print each with its value and where it comes from: file and line, "
            "variable, option or default. Secrets are left out. Reads the files that the settings name, and connects "
            "to "
            "nothing. Exit code 0 if the settings are valid, 2 if not; with --strict 1 for warnings."
        ),
    )
    add_daemon_options(check)
    running.add_check_options(check)
    check.set_defaults(command=running.check_config)

    add_mirror_command(commands)

    config = commands.add_parser("config", help="print the example of all settings").add_subparsers(
        metavar="WHAT", required=True
    )
    example = config.add_parser("example", help="print config.example.yaml, every setting with its default")
    example.set_defaults(command=running.config_example)

    add_version_command(commands)

    topics = commands.add_parser(
        "topics",
        help="list the topics of the cluster",
        description="List topics with their partitions, leaders and incarnations.",
    )
    add_connection_options(topics, group=False)
    topics.add_argument("topic", nargs="*", help="only these")
    topics.add_argument("--partitions", action="store_true", help="a line for each partition")
    topics.set_defaults(command=inspection.topics)

    lag = commands.add_parser(
        "lag",
        help="show how far a group is behind, owned or not",
        description=(
            "Show each partition of a group, with its owner, position, lag in records, and in seconds where records "
            "have "
            "timestamps. Works for any group, and with --all-groups for all of them, then without seconds."
        ),
    )
    add_connection_options(lag, group=True)
    lag.add_argument("--all-groups", action="store_true", help="all groups, ZooKeeper's and Kafka's")
    lag.add_argument("topic", nargs="*", help="only these")
    lag.add_argument(
        "--watch", type=positive_seconds, metavar="SECONDS",
        help="repeat at this interval; a note estimates the time behind where records have no timestamps",
    )  # fmt: skip
    lag.set_defaults(command=inspection.lag)

    add_groups_command(commands)
    add_identities_command(commands)
    add_offset_commands(commands.add_parser("offsets", help="look at stored positions, keep them, move them"))
    add_migrate_commands(commands)

    explain = commands.add_parser(
        "explain-rebalance",
        help="show who owns what, who would, and what would move",
        description=(
            "Compute the assignment that every member of the group computes, now and with more replicas, and check "
            "that "
            "Java members' patience (retries times backoff) outlasts a session."
        ),
    )
    add_connection_options(explain, group=True)
    explain.add_argument(
        "--replicas", type=count, default=0, metavar="N", help="as if N more consumerd processes joined"
    )
    explain.add_argument(
        "--streams", type=positive_count, default=1, metavar="N", help="streams of each added replica (1)"
    )
    explain.add_argument(
        "--java-retries", type=count, default=4, metavar="N", help="rebalance.max.retries of Java members (4)"
    )
    explain.add_argument(
        "--java-backoff-ms", type=count, default=2000, metavar="MS", help="rebalance.backoff.ms of Java members (2000)"
    )
    explain.add_argument(
        "--java-session-ms", type=count, default=6000, metavar="MS",
        help="zookeeper.session.timeout.ms of Java members (6000)",
    )  # fmt: skip
    explain.set_defaults(command=inspection.explain_rebalance)
    add_doctor_command(commands)
    add_quarantine_command(commands)
    add_tail_command(commands)
    add_produce_command(commands)
    add_broker_command(commands)
    add_demo_command(commands)
    return parser
