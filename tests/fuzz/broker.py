# SPDX-License-Identifier: Apache-2.0
"""Damaged requests at an embedded broker, over its socket: it answers or closes the connection, and lives.

    python tests/fuzz/broker.py --seconds 300 [--seed 7]

Requests are those that real clients sent, of every API and version, damaged as a broken client or network would: bytes,
lengths and counts changed, parts cut out and doubled, versions and keys that do not fit. Afterwards the broker must write and
read as before, must have reported no failure of its own, never have held more memory than the bound, hold no descriptor of those
that have gone, and end in order; every unit in its logs must be whole and have its checksum, and when they are opened again
every offset must give its record. Group requests leave members behind, which time out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from aiokafka.record.memory_records import MemoryRecords  # noqa: E402

from consumerd.embedded.broker import BrokerSettings  # noqa: E402
from consumerd.embedded.cluster import EmbeddedCluster  # noqa: E402
from consumerd.embedded.log.files import OsLogFiles  # noqa: E402
from consumerd.embedded.log.log_directory import LogDirectory  # noqa: E402
from consumerd.embedded.log.settings import LogSettings  # noqa: E402
from consumerd.telemetry.logs import configure_logging  # noqa: E402
from consumerd.wire.modern.groups import DescribeGroupsRequest  # noqa: E402
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest, OffsetFetchTopic  # noqa: E402
from consumerd.wire.modern.produce import ProducePartition, ProduceRequest, ProduceTopic  # noqa: E402
from consumerd.wire.schema import Request  # noqa: E402
from consumerd.wire.session import encode_request  # noqa: E402
from tests.support import broker_script, verification  # noqa: E402
from tests.support.daemon import wait_until  # noqa: E402
from tests.support.frames import load_frames  # noqa: E402
from tests.support.logs import read_records  # noqa: E402
from tests.support.raw_client import fetch, produce  # noqa: E402

MAX_PEAK_MIB: Final = 300
MAX_DESCRIPTORS: Final = 30
"""Of a broker with three logs and no connection: 16, and some room."""
_TOPICS: Final = {"t": 2, "plain": 1}
_INTERESTING: Final = (-(1 << 31), -2, -1, 0, 1, 2, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 1 << 20, (1 << 31) - 1)
_ANSWER_S: Final = 0.02
_GREEDY_FROM_S: Final = 20
"""A storm of at least that long ends with the longest lists, which take seconds on a busy machine."""


class BrokerFailed(Exception):
    """What the broker must not do."""


def sane_requests() -> list[bytes]:
    """Return frames of every API and version that there are."""
    frames = {frame.request for frame in load_frames()}
    for release in broker_script.RELEASES_COMPARED:
        frames |= set(broker_script.frames(release))
    return sorted(frames)


def damage(frame: bytes, rng: random.Random) -> bytes:
    """Return a frame with up to four faults; mostly its size prefix is right again."""
    data = bytearray(frame[4:])
    for _ in range(rng.randrange(4)):
        at = rng.randrange(max(len(data), 1))
        match rng.randrange(8):
            case 0 if data:
                data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                del data[at : at + rng.randrange(1, 9)]
            case 4:
                data[at:at] = data[at : at + rng.randrange(1, 200)]
            case 5:
                data[0:4] = struct.pack(">hh", rng.randrange(-1, 30), rng.randrange(-1, 12))
            case _:
                width = rng.choice("bhiq")
                packed = struct.Struct(f">{width}")
                value = rng.choice(_INTERESTING)
                with contextlib.suppress(struct.error):
                    data[at : at + packed.size] = packed.pack(value)
    size = len(data) if rng.random() < 0.95 else rng.choice(_INTERESTING)
    return struct.pack(">i", min(size, (1 << 31) - 1)) + data


def greedy_requests() -> list[bytes]:
    """Return the longest lists that are read: of positions, of groups, of partitions without records."""
    topic, numbers = "plain", tuple(range(120_000))
    without_records = tuple(ProducePartition(partition=number, record_set=None) for number in numbers[:49_000])
    requests: list[tuple[Request[Any], int]] = [
        (OffsetFetchRequest(group_id="g", topics=(OffsetFetchTopic(topic=topic, partitions=numbers),)), 1),
        (DescribeGroupsRequest(groups=tuple(map(str, numbers[:60_000]))), 0),
        (ProduceRequest(acks=1, timeout_ms=1, topics=(ProduceTopic(topic=topic, partitions=without_records),)), 2),
    ]
    return [encode_request(request, version, correlation_id=1, client_id="greedy") for request, version in requests]


def be_greedy(port: int) -> None:
    """Send them, and wait until each is answered. Raises BrokerFailed."""
    for request in greedy_requests():
        with socket.create_connection(("127.0.0.1", port), 20) as connection:
            connection.settimeout(60)
            connection.sendall(request)
            size = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0]
            while size > 0 and (data := connection.recv(1 << 16)):
                size -= len(data)
            if size:
                raise BrokerFailed(f"{size} bytes of an answer are missing")


def storm(port: int, *, seconds: float, seed: int) -> Counter[str]:
    """Send for some seconds; return what came of the connections. Raises ConnectionRefusedError if nobody is there."""
    rng = random.Random(seed)
    requests = sane_requests()
    outcomes: Counter[str] = Counter()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        with socket.create_connection(("127.0.0.1", port), 20) as connection:
            connection.settimeout(_ANSWER_S)
            try:
                for _ in range(rng.randrange(1, 4)):
                    connection.sendall(damage(rng.choice(requests), rng))
                outcomes["answered" if connection.recv(1 << 16) else "closed"] += 1
            except TimeoutError:
                outcomes["left waiting"] += 1
            except ConnectionError:
                outcomes["closed"] += 1
    return outcomes


def check_alive(port: int) -> None:
    """Write and read once more. Raises BrokerFailed.

    What the storm sent and did not wait for may be written meanwhile, behind what is written here.
    """
    asker = broker_script.Asker(f"127.0.0.1:{port}")
    try:
        (produced,) = asker.ask(produce("plain", broker_script.records(2)), 3)["topics"][0]["partitions"]
        base = produced["base_offset"]
        (fetched,) = asker.ask(fetch("plain", base), 5)["topics"][0]["partitions"]
    finally:
        asker.close()
    found = [(row[0], row[4]) for row in fetched["record_set"]["records"][:3]]
    if produced["error_code"] or found != [(base, "a" * 20), (base + 1, "b" * 20), (base + 2, "c" * 20)]:
        raise BrokerFailed(f"wrote {produced}, read {fetched}")


def check_logs(directory: Path) -> int:
    """Return how many units all logs have. Raises BrokerFailed for one that is damaged."""
    units = 0
    for path in sorted(directory.glob("*/*.log")):
        data = path.read_bytes()
        memory = MemoryRecords(data)
        while (unit := memory.next_batch()) is not None:
            units += 1
            if not unit.validate_crc():
                raise BrokerFailed(f"{path}: unit {units} fails its checksum")
            for _ in unit:
                pass
        if memory.size_in_bytes() != len(data):
            raise BrokerFailed(f"{path}: {len(data) - memory.size_in_bytes()} bytes at its end are no unit")
    return units


def check_opened_again(directory: Path) -> int:
    """Open the logs as the next broker does and return how many records they give. Raises BrokerFailed for a gap."""
    logs = LogDirectory.open(directory, files=OsLogFiles(), now_ms=lambda: time.time_ns() // 1_000_000)
    count = 0
    for partition in logs.find_partitions():
        log = logs.open_log(partition, LogSettings())
        there = [record.offset for record in read_records(log, max_bytes=1 << 20)]
        if there != list(range(log.start_offset, log.end_offset)):
            raise BrokerFailed(f"{log!r} gives {len(there)} records")
        count += len(there)
    logs.close()
    return count


def read_peak_mib(pid: int) -> float:
    """Return the most memory that a process has had."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def check_descriptors(pid: int, port: int) -> None:
    """See that no connection and no file of those that have gone is kept. Raises BrokerFailed."""

    def count() -> int:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())

    with contextlib.suppress(TimeoutError):
        wait_until(lambda: count() <= MAX_DESCRIPTORS, "connections are closed", 30)
    if count() > MAX_DESCRIPTORS:
        raise BrokerFailed(f"port {port}: {count()} descriptors are open, at most {MAX_DESCRIPTORS} are right")


def run(seconds: float, seed: int, directory: Path) -> str:
    """Start a broker, storm it, and check what is left; return a line about it. Raises BrokerFailed."""
    log_path = directory / "broker.err"
    with log_path.open("wb") as log:
        broker = subprocess.Popen(
            [sys.executable, str(Path(__file__)), "--serve", str(directory)], stdout=subprocess.PIPE, stderr=log
        )
    assert broker.stdout is not None
    try:
        port = int(broker.stdout.readline() or b"0")
        outcomes = storm(port, seconds=seconds, seed=seed)
        if seconds >= _GREEDY_FROM_S:
            be_greedy(port)
        check_alive(port)
        check_descriptors(broker.pid, port)
        peak_mib = read_peak_mib(broker.pid)
        broker.send_signal(signal.SIGTERM)
        code = broker.wait(30)
    except (OSError, ValueError) as error:
        raise BrokerFailed(f"seed {seed}: {error}; its log ends:\n{log_path.read_text()[-3000:]}") from error
    finally:
        broker.kill()
        broker.wait()
        broker.stdout.close()
    said = log_path.read_text()
    if code or "request_failed" in said or "answer_unwritable" in said or "Traceback" in said:
        at = max(said.find("request_failed"), said.find("answer_unwritable"), said.find("Traceback"), 0)
        raise BrokerFailed(f"seed {seed}: it ended with {code} and said:\n{said[max(at - 500, 0) : at + 3000]}")
    if peak_mib > MAX_PEAK_MIB:
        raise BrokerFailed(f"seed {seed}: {peak_mib:.0f} MiB at most, {MAX_PEAK_MIB} are right")
    units = check_logs(directory / "logs")
    records = check_opened_again(directory / "logs")
    return (
        f"{sum(outcomes.values())} connections ({dict(outcomes)}), {peak_mib:.0f} MiB at most, "
        f"{units} units and {records} records in its logs"
    )


async def serve(directory: Path) -> None:
    """Be the broker until SIGTERM."""
    configure_logging("warning")
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    # what is sent is dated years ago
    make = partial(BrokerSettings, auto_create_topics=False, log=LogSettings(retention_ms=None))
    async with EmbeddedCluster(directory, topics=_TOPICS, make_broker=make) as cluster:
        sys.stdout.write(f"{cluster.broker.port}\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> None:
    """Run once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        asyncio.run(serve(args.serve))
        return
    with tempfile.TemporaryDirectory(prefix="consumerd-storm-") as directory:
        outcome = run(args.seconds, args.seed, Path(directory))
        sys.stdout.write(f"seed {args.seed}: {outcome}\n")
        verification.record(
            "`make fuzz`, the broker", {"connections": f"{outcome}, in {args.seconds:.0f} s of seed {args.seed}"}
        )


if __name__ == "__main__":
    main()
