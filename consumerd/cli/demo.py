# SPDX-License-Identifier: Apache-2.0
"""``consumerd demo``: starts a cluster, lands records as files, and audits the files."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumerd.aio.clock import monotonic
from consumerd.aio.signals import stopped_by_signals
from consumerd.aio.tasks import unless
from consumerd.cli.options import count, positive_count, positive_seconds
from consumerd.demo.downloads import find_downloads
from consumerd.embedded.zookeeper import get_zookeeper_jars
from consumerd.errors import ConfigError
from consumerd.installation import install_command
from consumerd.java import get_java
from consumerd.model import Generation
from consumerd.telemetry.text_tables import render_table
from consumerd.telemetry.wording import counted, join_shown

if TYPE_CHECKING:
    from consumerd.demo.mirror import MirrorOutcome
    from consumerd.demo.show import DemoOutcome

_RECORDS: Final = 60_000
_SECONDS: Final = 12.0
_EXTRAS: Final = ("pyarrow", "pandas", "pyspark", "rich")
_SHOWN_DOWNLOADS: Final = 3
_MIB: Final = 1 << 20


def add_demo_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``consumerd demo`` to the parser."""
    parser = commands.add_parser(
        "demo",
        help="start a cluster, land a stream while the group is disturbed, and audit it",
        description=(
            "Start ZooKeeper and a broker, produce orders and clicks with every codec, land them with two daemons in "
            "Parquet and "
            "JSON lines, start a third, kill one, and compare what has landed with what was acknowledged; then audit, "
            "bronze and silver "
            "of the data pipeline, on Spark. Needs the extra demo, and says how to install it where it is not. "
            "Everything listens on 127.0.0.1. Ctrl-C ends it at any moment and removes "
            "everything; the files of a finished demo are kept. Exit code 1 if a record is lost, doubled or changed."
        ),
    )
    parser.add_argument("--records", type=positive_count, default=_RECORDS, metavar="N", help=f"so many ({_RECORDS})")
    parser.add_argument(
        "--seconds", type=positive_seconds, default=_SECONDS, metavar="S",
        help=f"how long producing them takes, at least ({_SECONDS:g})",
    )  # fmt: skip
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="FOLDER",
        help="a new or empty folder for everything (one for temporary files)",
    )
    parser.add_argument("--seed", type=count, default=1, metavar="N", help="another stream for another number (1)")
    parser.add_argument(
        "--setup-log", type=Path, metavar="FILE", help="what pip install --log wrote: say how much it has downloaded"
    )
    parser.add_argument(
        "--generation", choices=[one.value for one in Generation], default=Generation.MODERN.value,
        help="legacy: two brokers of Kafka 0.7, of which one goes away and comes back with its partitions "
        f"({Generation.MODERN.value})",
    )  # fmt: skip
    parser.add_argument(
        "--secure", action="store_true",
        help="brokers with SASL (SCRAM-SHA-256) and ACLs; at the end it says what was refused",
    )  # fmt: skip
    parser.add_argument(
        "--mirror", action="store_true",
        help="copy one cluster into another with consumerd mirror, and move a group there with consumerd migrate",
    )  # fmt: skip
    parser.set_defaults(command=demo)


async def demo(args: argparse.Namespace) -> int:
    """Run the command ``consumerd demo``, print its results, and return the exit code."""
    if args.secure and args.generation == Generation.LEGACY.value:
        raise ConfigError("--secure: brokers of Kafka 0.6 and 0.7 know neither SASL nor ACLs")
    if args.mirror and args.generation == Generation.LEGACY.value:
        raise ConfigError("--mirror: its source is of --generation modern")
    if args.mirror and args.secure:
        raise ConfigError("--mirror: its clusters are without SASL; give it without --secure")
    await _check_extra()
    # here, since they need what was just checked, and a daemon needs none of it
    from consumerd.demo.display import make_display
    from consumerd.demo.mirror import MirrorDemo, MirrorOutcome
    from consumerd.demo.show import Demo, DemoSettings

    if args.setup_log is not None:
        sys.stdout.write(describe_downloads(args.setup_log))
    with stopped_by_signals() as stop, _folder(args.directory) as folder:
        settings = DemoSettings(
            folder=folder.path,
            records=args.records,
            seconds=args.seconds,
            seed=args.seed,
            generation=Generation(args.generation),
            is_secured=args.secure,
        )
        with make_display(monotonic) as display:
            demonstration: Demo | MirrorDemo
            demonstration = (
                MirrorDemo(settings, display, monotonic) if args.mirror else Demo(settings, display, monotonic)
            )
            outcome: DemoOutcome | MirrorOutcome | None = await unless(stop.told, demonstration.run())
        if outcome is None:
            # a thread cannot be cancelled: the audit's may still write into the folder, for a second or two
            await asyncio.get_running_loop().shutdown_default_executor()
            folder.keep = False
    if outcome is None:
        assert stop.number is not None
        with suppress(OSError):  # the terminal has gone
            sys.stderr.write("consumerd: interrupted; everything was stopped and removed\n")
        return 128 + stop.number
    sys.stdout.write(render_mirror(outcome) if isinstance(outcome, MirrorOutcome) else render_report(outcome))
    return 0 if outcome.sound else 1


async def _check_extra() -> None:
    """Raise ConfigError when something is missing that the demo needs."""
    missing = [name for name in _EXTRAS if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the demo needs {join_shown(missing, len(missing))}: {install_command('demo')}")
    get_zookeeper_jars()
    await asyncio.to_thread(get_java)


@dataclass(slots=True, kw_only=True)
class _Folder:
    """Folder of the demo's files; ``ours`` if the demo created it."""

    path: Path
    ours: bool
    keep: bool = True

    def remove(self) -> None:
        """Remove its content, and the folder if the demo created it."""
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        if self.ours:
            self.path.rmdir()


@contextmanager
def _folder(given: Path | None) -> Iterator[_Folder]:
    """Create the folder, and remove it at the block's end unless it shall be kept.

    Raises ConfigError.
    """
    folder = _make_folder(given)
    try:
        yield folder
    except BaseException as error:
        # the files are needed to find out what went wrong
        folder.keep = isinstance(error, Exception)
        if folder.keep:
            sys.stderr.write(f"consumerd: logs and files are kept in {folder.path}\n")
        raise
    finally:
        if not folder.keep:
            folder.remove()


def _make_folder(given: Path | None) -> _Folder:
    if given is None:
        return _Folder(path=Path(tempfile.mkdtemp(prefix="consumerd-demo-")), ours=True)
    path = given.absolute()
    try:
        ours = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise ConfigError(f"--directory: {path} is not empty; the demo wants a folder of its own")
    except OSError as error:
        raise ConfigError(f"--directory: {path} cannot be used: {error}") from error
    return _Folder(path=path, ours=ours)


def render_report(outcome: DemoOutcome) -> str:
    """Return the text that ``consumerd demo`` prints at its end: counts by topic, and findings."""
    heads = ["topic", "produced", "landed", "lost", "twice", "changed", "misplaced", "unknown"]
    rows = [
        (one.topic, one.produced, one.landed, one.lost, one.twice, one.changed, one.misplaced, one.unknown)
        for one in outcome.audits
    ]
    lines = ["", *render_table(heads, rows).splitlines(), ""]
    lines += [f"  {finding}" for one in outcome.audits for finding in one.findings]
    lines.append(f"rebalances ({len(outcome.rebalances)}), as the members' logs tell them:")
    table = [
        (
            f"{one.ended - outcome.began:.1f} s",
            one.member,
            one.cause,
            one.gained,
            one.lost,
            one.stayed,
            f"{one.took_s:.2f} s",
        )
        for one in outcome.rebalances
    ]
    lines += render_table(["at", "member", "cause", "gained", "lost", "stayed", "took"], table).splitlines()
    lines += ["", "files:"]
    lines += [
        f"  {one.folder} ({counted(one.count, 'file')}, {one.size_bytes / _MIB:.1f} MiB)" for one in outcome.files
    ]
    lines += [f"  {outcome.ledger} (the producer's ledger)", "", "look at them:"]
    lines += [f"  {line}" for line in look_lines(outcome.files[0].folder)]
    lines += render_lake(outcome)
    if outcome.refusals:
        lines += ["", "protected: every client has proven who it is, and did what its ACLs allow; tried and refused:"]
        lines += [f"  {refusal}" for refusal in outcome.refusals]
        lines += ["  not protected: connections are not encrypted (no TLS), and ZooKeeper is open"]
    verdict = (
        "every record has landed exactly once, and is in the tables once"
        if outcome.sound
        else "THE AUDIT HAS FOUND FAULTS"
    )
    lines += ["", f"{verdict}; the demo took {outcome.seconds:.0f} s"]
    return "".join(f"{line}\n" for line in lines)


def render_mirror(outcome: MirrorOutcome) -> str:
    """Return the text that ``consumerd demo --mirror`` prints at its end: counts, and findings."""
    rows = [("from the old cluster", outcome.old), ("from the new cluster", outcome.new)]
    lines = ["", *render_table(["the group has read", "records"], rows).splitlines(), ""]
    lines += [f"  {finding}" for finding in outcome.findings]
    verdict = (
        f"of {outcome.produced:,} records the group has read each once and in order: it went on with the very record "
        "that it would have read next"
        if outcome.sound
        else "THE AUDIT HAS FOUND FAULTS"
    )
    lines += [f"files and logs: {outcome.folder}", f"{verdict}; the demo took {outcome.seconds:.0f} s"]
    return "".join(f"{line}\n" for line in lines)


def render_lake(outcome: DemoOutcome) -> list[str]:
    """Return lines that describe the demo's tables, their first rows, and the next steps."""
    lake = outcome.lake
    lines = ["", "the data pipeline, over these files (consumerd-spark):"]
    lines += [f"  ! {finding}" for finding in (*lake.findings, *outcome.disagreements)]
    for name, table in lake.tables.items():
        lines.append(f"  {name}: {counted(table.total, 'row')}")
        if table.first:
            lines += [f"    {line}" for line in render_table(table.heads, table.first).splitlines()]
    command = shlex.join([sys.executable, "-m", "consumerd.spark", "audit", "--config", str(lake.settings)])
    return [*lines, "", "any of its jobs again:", f"  {command}"]


def look_lines(parquet: Path) -> list[str]:
    """Return shell commands that show the contents of landed Parquet files.

    Args:
        parquet: Folder of the files.
    """
    program = (
        "import json, pandas; "
        # the folders' names say topic and partition as the files' columns do
        f"records = pandas.read_parquet({json.dumps(str(parquet))}, partitioning=None); "
        "orders = pandas.json_normalize(records.value.dropna().map(json.loads)); "
        'print(orders.groupby("channel").total_cents.agg(["count", "sum"]))'
    )
    return [shlex.join([sys.executable, "-c", program])]


def describe_downloads(log: Path) -> str:
    """Return one line about the number and size of pip's downloads at the demo's set-up.

    Args:
        log: File with pip's output.
    """
    found = find_downloads(log)
    if not found.sizes and not found.built:
        return "set-up had nothing to download\n"
    largest = [f"{name} {size:.0f} MB" for name, size in found.sizes.items()]
    built = f"; without what pip has built before: {', '.join(found.built)}" if found.built else ""
    return (
        f"set-up has downloaded {sum(found.sizes.values()):.0f} MB in {counted(len(found.sizes), 'file')}: "
        f"{join_shown(largest, _SHOWN_DOWNLOADS)}{built}\n"
    )
