# SPDX-License-Identifier: Apache-2.0
"""``consumerd quarantine``: shows messages and records that a policy has set aside.

Reads only the quarantine's files; needs neither a daemon nor ZooKeeper.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from consumerd.admin.quarantined import (
    FoundUnit,
    describe_unit,
    dump_bytes,
    find_unit,
    find_units,
    problems_of,
    read_records,
)
from consumerd.cli.options import add_settings_options, count
from consumerd.cli.tables import print_rows
from consumerd.client.stored_unit import UnitReading
from consumerd.config.load import load_settings
from consumerd.errors import ConfigError
from consumerd.sinks.quarantine_record import KeptUnit
from consumerd.telemetry.wording import counted
from consumerd.wire.records import Record

_COLUMNS: Final = ("topic", "partition", "offset", "next_offset", "index", "cause", "size", "kept", "when", "reason")
_CAUSES: Final = ("corrupt", "oversized", "rejected")
_DUMP_BYTES: Final = 512


def add_quarantine_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``consumerd quarantine`` to the parser."""
    parser = commands.add_parser(
        "quarantine",
        help="look at records and messages that a policy has passed over",
        description=(
            "Look at what `fetch.on_corrupt`, `fetch.on_oversized` or a sink's `on_rejected` has put into quarantine. "
            "Reads the "
            "files alone: neither a daemon nor ZooKeeper is needed."
        ),
    )
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    listing = inner.add_parser(
        "list",
        help="list what is kept below quarantine.path",
        description=(
            "List quarantined units. Reads the files alone. Exit code 1 if a file cannot be read, or the folder holds "
            "something else."
        ),
    )
    _add_path_options(listing)
    listing.add_argument("topic", nargs="?", help="only of this topic")
    listing.add_argument("--cause", choices=_CAUSES, help="only of this cause")
    listing.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    listing.set_defaults(command=list_units)

    show = inner.add_parser(
        "show",
        help="show one unit: what is known of it, its records, its bytes",
        description=(
            "Show a unit by its file or by a place in the log. Records are read as far as they can be; those that only "
            "the "
            "checksum refuses are shown with a note."
        ),
    )
    show.add_argument("unit", metavar="FILE | TOPIC/PARTITION@OFFSET")
    _add_path_options(show)
    show.add_argument(
        "--raw", action="store_true", help="the unit's bytes alone, on stdout; of a rejected record its value"
    )
    show.add_argument("--bytes", type=count, default=_DUMP_BYTES, metavar="N", help=f"dump so many ({_DUMP_BYTES})")
    show.add_argument("--json", action="store_true", help="one JSON object a unit")
    show.set_defaults(command=show_unit)


def _add_path_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--path", type=Path, metavar="FOLDER", help="the quarantine, if not that of the settings")
    add_settings_options(parser)


async def list_units(args: argparse.Namespace) -> int:
    """Run ``consumerd quarantine list``: list quarantined messages and record batches.

    Returns the exit code.
    """
    path = _find_path(args)
    if path is None:
        raise ConfigError("quarantine.path: not set; give --path FOLDER, or a settings file that has it")
    if args.path is None and not path.exists():
        sys.stderr.write(f"consumerd: {path} is not there; it is made with the first unit, or not mounted\n")
        found: list[FoundUnit] = []
    else:
        found = find_units(path, topic=args.topic, cause=args.cause)
    rows = [describe_unit(path, one) for one in found if one.kept is not None]
    print_rows(rows, _COLUMNS, as_json=args.json, empty="nothing is quarantined")
    return _report(found)


async def show_unit(args: argparse.Namespace) -> int:
    """Run ``consumerd quarantine show``: print a quarantined message or record batch.

    Returns the exit code.
    """
    path = _find_path(args)
    found = find_unit(path, args.unit)
    readable = [(one, one.kept) for one in found if one.kept is not None]
    if args.raw:
        if len(readable) > 1:
            names = ", ".join(str(one.path) for one, _ in readable)
            raise ConfigError(f"{args.unit} is in {len(readable)} units; name one of their files: {names}")
        for _, kept in readable:
            sys.stdout.buffer.write(_payload(kept))
        return _report(found)
    for one, kept in readable:
        row = asdict(describe_unit(path or Path(), one))
        row |= {"group": kept.group, "cluster": kept.cluster, "complete": kept.complete}
        reading = read_records(kept)
        if args.json:
            records = [_record_json(record) for record in reading.records]
            sys.stdout.write(json.dumps({**row, "records": records, "note": reading.note}) + "\n")
        else:
            sys.stdout.write(_describe(row, reading, kept, args.bytes))
    return _report(found)


def _find_path(args: argparse.Namespace) -> Path | None:
    """Return the quarantine's path, or None if none is given. Raises ConfigError."""
    if args.path is not None or (args.config is None and args.properties is None and not args.overrides):
        return args.path  # type: ignore[no-any-return]  # argparse knows no types
    return load_settings(config=args.config, properties=args.properties, overrides=args.overrides).quarantine.path


def _report(found: list[FoundUnit]) -> int:
    problems = problems_of(found)
    for problem in problems:
        sys.stderr.write(f"consumerd: {problem}\n")
    return 1 if problems else 0


def _payload(kept: KeptUnit) -> bytes:
    return kept.unit.raw if kept.unit.record is None else kept.unit.record.value or b""


def _describe(row: dict[str, object], reading: UnitReading, kept: KeptUnit, limit: int) -> str:
    width = max(map(len, row))
    lines = [f"{name.replace('_', ' '):<{width}}  {'-' if value is None else value}" for name, value in row.items()]
    lines += ["", counted(len(reading.records), "record") + (f" ({reading.note})" if reading.note else "")]
    lines += [json.dumps(_record_json(record), ensure_ascii=False) for record in reading.records]
    lines += ["", *dump_bytes(_payload(kept), limit), ""]
    return "".join(f"{line}\n" for line in lines)


def _record_json(record: Record) -> dict[str, object]:
    return {
        "offset": record.offset,
        "index": record.index,
        "timestamp": record.timestamp if record.timestamp >= 0 else None,
        **_text_or_base64("key", record.key),
        **_text_or_base64("value", record.value),
        "headers": [{"key": key, **_text_or_base64("value", value)} for key, value in record.headers],
    }


def _text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return a field in the form that landed JSON lines have."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}
