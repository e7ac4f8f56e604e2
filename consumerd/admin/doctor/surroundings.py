# SPDX-License-Identifier: Apache-2.0
"""Tries out what settings rest on: landing folders, clocks, the HTTP surface and the daemon behind it.

Leaves nothing behind.

Looking is not enough for file systems: a mount may be read-only, refuse ``link(2)``, or have no inode left while bytes are
free. So each ability is used for real, on a file of the doctor's own, which is removed at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from consumerd.delivery.status import DeliveryState
from consumerd.errors import CoordinationError
from consumerd.landing.failures import describe_failure
from consumerd.landing.filesystem import FileSystem, OsFileSystem
from consumerd.zk.layout import group_path
from consumerd.zk.port import NoNode, NotPermitted, ZkClient

_PROBE_BYTES: Final = b"written by consumerd doctor; may be deleted\n" * 100
_METRICS_MARK: Final = b"consumerd_info"
_TROUBLED: Final = frozenset({DeliveryState.STOPPED.value, DeliveryState.FAILING.value})
_METRICS_BYTES: Final = 1 << 20
_STATUS_BYTES: Final = 64 << 20
"""Largest status that is read: about 600 bytes a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceFacts:
    """Free and total bytes and inodes of a file system, as this user may use them.

    ``inodes`` is 0 for a file system that makes inodes as it needs them.
    """

    free_bytes: int
    bytes: int
    free_inodes: int
    inodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """What a landing folder allows.

    ``tried`` is the folder that was tried: the nearest one that exists, where the path itself is still to be made.
    ``failures`` has what went wrong by ability (write, fsync, link, fsync of the folder, flock).
    ``refused`` lists folders of partitions below the path that this user may not list and write.
    """

    setting: str
    path: Path
    tried: Path
    space: SpaceFacts | None = None
    failures: dict[str, str] = field(default_factory=dict)
    refused: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    """This machine's clock against ZooKeeper's; ``ahead_ms`` is None where it could not be compared.

    ``within_ms`` is how exact that is: half of the time that the request took.
    """

    ahead_ms: int | None = None
    within_ms: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsFacts:
    """What answers at ``http.listen``. ``problem`` is why nothing did, ``foreign`` whether it is no consumerd's."""

    address: tuple[str, int]
    problem: str = ""
    foreign: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubledPartition:
    """A partition that a running daemon says is stopped, or is failing; ``since`` is ISO 8601."""

    name: str
    state: str
    since: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonFacts:
    """What the daemon at ``http.listen`` says of itself. ``problem`` is why its answer cannot be read."""

    address: tuple[str, int]
    group: str = ""
    troubled: tuple[TroubledPartition, ...] = ()
    problem: str = ""


def try_folder(
    setting: str,
    path: Path,
    *,
    within: Collection[Path] = (),
    files: FileSystem | None = None,
    lock: Callable[[int], None] | None = None,
    stat: Callable[[Path], os.statvfs_result] = os.statvfs,
    may: Callable[[Path, int], bool] = os.access,
) -> FolderFacts:
    """Use each ability that landing rests on, in a file that is removed again. Blocks; raises nothing of the disk's.

    Args:
        within: Folders below ``path``. They are asked for permission only: their owners are at work in them.
    """
    files = files or OsFileSystem()
    refused = tuple(folder for folder in within if not may(folder, os.R_OK | os.W_OK | os.X_OK))
    tried = next(folder for folder in (path, *path.parents) if folder.is_dir())
    failures: dict[str, str] = {}
    space = None
    try:
        found = stat(tried)
        space = SpaceFacts(
            free_bytes=found.f_bavail * found.f_frsize,
            bytes=found.f_blocks * found.f_frsize,
            free_inodes=found.f_favail,
            inodes=found.f_files,
        )
    except OSError as error:
        failures["statvfs"] = describe_failure(error, "ask for the free space of", tried)
    # hidden, as files that are being written: no reader takes it for data
    first = tried / f".consumerd-doctor-{secrets.token_hex(8)}.tmp"
    second = first.with_suffix(".linked")
    steps: dict[str, Callable[[int], None]] = {
        "write": lambda descriptor: files.write(descriptor, _PROBE_BYTES),
        "fsync": files.sync,
        "link": lambda _descriptor: files.link(first, second),
        "fsync of the folder": lambda _descriptor: files.sync_folder(tried),
        "flock": lock or (lambda descriptor: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)),
    }
    try:
        descriptor = files.create(first)
    except OSError as error:
        failures["write"] = describe_failure(error, "make a file in", tried)
        return FolderFacts(setting=setting, path=path, tried=tried, space=space, failures=failures, refused=refused)
    try:
        for ability, step in steps.items():
            try:
                step(descriptor)
            except OSError as error:
                failures[ability] = describe_failure(error, ability, tried)
    finally:
        with suppress(OSError):
            files.close(descriptor)
        for name in (first, second):
            with suppress(OSError):
                files.unlink(name)
    return FolderFacts(setting=setting, path=path, tried=tried, space=space, failures=failures, refused=refused)


async def compare_clocks(zk: ZkClient, group: str, *, wall_ms: Callable[[], int]) -> ClockFacts:
    """Compare this machine's clock with ZooKeeper's, by an ephemeral node that is deleted again. Raises CoordinationError.

    ZooKeeper's leader gives a node its ``ctime``. The node lies in the group's folder, or above it where that is not made yet.
    """
    for parent in (group_path(group), group_path(group).rpartition("/")[0], ""):
        path = f"{parent}/.consumerd-doctor-{secrets.token_hex(8)}"
        try:
            before = wall_ms()
            await zk.create(path, b"", ephemeral=True)
            after = wall_ms()
        except NoNode:
            continue
        except NotPermitted as error:
            return ClockFacts(problem=str(error))
        stat = await zk.exists(path)
        await zk.delete(path)
        if stat is None:
            return ClockFacts(problem=f"{path} was deleted by somebody else")
        return ClockFacts(ahead_ms=(before + after) // 2 - stat.ctime_ms, within_ms=(after - before + 1) // 2)
    raise CoordinationError("/: there is no such node")


def ask_metrics(address: tuple[str, int], *, timeout_s: float) -> MetricsFacts:
    """Ask for ``/metrics`` at a listen address, without any proxy. Blocks; raises nothing of the network's."""
    url = _url(address, "/metrics")
    try:
        said = _get(url, timeout_s=timeout_s, most_bytes=_METRICS_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            return MetricsFacts(address=address, problem=f"{url} answers {error.code}", foreign=True)
    except (OSError, ValueError) as error:
        return MetricsFacts(address=address, problem=f"{url}: {getattr(error, 'reason', error)}")
    if _METRICS_MARK not in said:
        return MetricsFacts(address=address, problem=f"{url} has no {_METRICS_MARK.decode()}", foreign=True)
    return MetricsFacts(address=address)


def ask_daemon(address: tuple[str, int], *, timeout_s: float) -> DaemonFacts:
    """Ask a daemon for the status of its partitions. Blocks; raises nothing of the network's."""
    url = _url(address, "/api/v1/status")
    try:
        status = json.loads(_get(url, timeout_s=timeout_s, most_bytes=_STATUS_BYTES))
        return DaemonFacts(
            address=address,
            group=str(status["group"]),
            troubled=tuple(
                TroubledPartition(
                    name=f"{one['topic']}/{one['partition']}",
                    state=one["state"],
                    since=str(one["since"]["at"]),
                    reason=str(one["reason"]),
                )
                for one in status["partitions"]
                if one["state"] in _TROUBLED
            ),
        )
    except urllib.error.HTTPError as error:
        with error:
            return DaemonFacts(address=address, problem=f"{url} answers {error.code}")
    except OSError as error:
        return DaemonFacts(address=address, problem=f"{url}: {getattr(error, 'reason', error)}")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        return DaemonFacts(
            address=address, problem=f"{url} does not answer with a status: {type(error).__name__} {error}"
        )


def _url(address: tuple[str, int], path: str) -> str:
    host, port = address
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - what a listener on all is asked at
    return f"http://{f'[{reached}]' if ':' in reached else reached}:{port}{path}"


def _get(url: str, *, timeout_s: float, most_bytes: int) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=timeout_s) as answer:
        said: bytes = answer.read(most_bytes)
    return said


def wall_ms() -> int:
    """Return this machine's time in ms since 1970."""
    return int(time.time() * 1000)
