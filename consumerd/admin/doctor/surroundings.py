# SPDX-License-Identifier: Apache-2.0
"""Tests the environment of a daemon: landing folders, clocks, HTTP port, and the daemon itself.

Leaves nothing behind. File permissions do not tell enough: a mount may be read-only, refuse ``link(2)``, or have no
inode left while bytes are free. So each operation is performed on a temporary file, which is removed at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from consumerd.access.credential_file import CredentialFile
from consumerd.delivery.status import DeliveryState
from consumerd.errors import ConfigError, CoordinationError
from consumerd.landing.failures import describe_failure
from consumerd.landing.filesystem import FileSystem, OsFileSystem
from consumerd.net.address import Address, reachable_host
from consumerd.zk.layout import group_path
from consumerd.zk.port import NoNode, NotPermitted, ZkClient

_PROBE_BYTES: Final = b"written by consumerd doctor; may be deleted\n" * 100
_METRICS_MARK: Final = b"consumerd_info"
_TROUBLED: Final = frozenset({DeliveryState.STOPPED.value, DeliveryState.FAILING.value})
_METRICS_BYTES: Final = 1 << 20
_STATUS_BYTES: Final = 64 << 20
"""Largest status that is read: about 600 bytes a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """Result of trying file operations in a landing folder, where a sink writes its files.

    Args:
        setting: Name of the setting that gives the folder.
        tried: Folder that was tried: ``path``, or its nearest existing parent.
        space: Under ``bytes`` and ``inodes``, free and total numbers of the file system for this user. The total of
            inodes is 0 if the file system allocates them on demand. Empty if unknown.
        failures: Error message of each operation that failed: write, fsync, link, fsync of the folder, flock.
        refused: Folders of partitions below ``path`` that this user may not list and write.
    """

    setting: str
    path: Path
    tried: Path
    space: dict[str, tuple[int, int]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    refused: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    """Comparison of this machine's clock with ZooKeeper's.

    Args:
        ahead_ms: Milliseconds by which this clock is ahead, below 0 if it is behind; None if they could not be
            compared.
        within_ms: Error of the comparison, in ms: half of the time that the request took.
        problem: Reason why they could not be compared; else empty.
    """

    ahead_ms: int | None = None
    within_ms: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsFacts:
    """Result of requesting ``/metrics`` from the address of the setting ``http.listen``.

    Args:
        address: Host and port.
        problem: Reason why no metrics were received; empty if they were.
        foreign: True if a server other than consumerd answers.
    """

    address: tuple[str, int]
    problem: str = ""
    foreign: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubledPartition:
    """Partition of a running daemon that is stopped or failing.

    ``name`` is ``TOPIC/PARTITION``; ``state`` is the daemon's name of the partition's state. ``since`` is the time, in
    ISO 8601, from which on the partition is in this state, for ``reason``.
    """

    name: str
    state: str
    since: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonFacts:
    """Status of the daemon that answers at the address of the setting ``http.listen``.

    Attributes:
        address: Host and port.
        group: Consumer group of the daemon that answers; empty if the response cannot be read.
        troubled: Partitions of the daemon that are stopped or failing.
        problem: Reason why the response cannot be read; empty if it can.
    """

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
    """Try each file operation of a file sink, on a temporary file in its folder.

    Returns the failures. Blocks; raises no OSError.

    Args:
        setting: Name of the setting that gives the folder.
        within: Folders below ``path``. Only their permissions are checked, because members write to them meanwhile.
        lock: Locks a file descriptor; None for ``flock(2)``.
        stat: Reads the free space of a file system.
        may: Checks permissions of a folder.
    """
    files = files or OsFileSystem()
    refused = tuple(folder for folder in within if not may(folder, os.R_OK | os.W_OK | os.X_OK))
    tried = next(folder for folder in (path, *path.parents) if folder.is_dir())
    failures: dict[str, str] = {}
    space: dict[str, tuple[int, int]] = {}
    try:
        found = stat(tried)
        space["bytes"] = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        space["inodes"] = found.f_favail, found.f_files
    except OSError as error:
        failures["statvfs"] = describe_failure(error, "ask for the free space of", tried)
    # hidden, like a file that is being written, so that no reader takes it for data
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
    """Compare this machine's clock with that of ZooKeeper's leader.

    The leader gives each new znode its creation time. So an ephemeral node is created in the group's folder, or above
    it if that does not exist, and deleted again. Raises CoordinationError.

    Args:
        wall_ms: This machine's clock, in ms since the epoch.
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
            return ClockFacts(problem=f"{path} was deleted by another client")
        return ClockFacts(ahead_ms=(before + after) // 2 - stat.ctime_ms, within_ms=(after - before + 1) // 2)
    raise CoordinationError("/: there is no such node")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess:
    """Files by which a client is let in at the daemon's HTTP port.

    Attributes:
        certificate: File with the daemon's own certificate, which it must show; None for http.
        token: File with the token; None for none.
    """

    certificate: Path | None = None
    token: Path | None = None


OPEN_HTTP: Final = HttpAccess()
"""Neither TLS nor a token."""


def ask_metrics(address: tuple[str, int], access: HttpAccess = OPEN_HTTP, *, timeout_s: float) -> MetricsFacts:
    """Request ``/metrics`` from a host and port, without any HTTP proxy.

    Blocks; raises no network error: the result says why there was no answer.
    """
    url = _url(address, "/metrics", access)
    try:
        said = _get(url, access, timeout_s=timeout_s, most_bytes=_METRICS_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            return MetricsFacts(address=address, problem=f"{url} answers {error.code}", foreign=True)
    except (OSError, ValueError, ConfigError) as error:
        return MetricsFacts(address=address, problem=f"{url}: {getattr(error, 'reason', error)}")
    if _METRICS_MARK not in said:
        return MetricsFacts(address=address, problem=f"{url} has no {_METRICS_MARK.decode()}", foreign=True)
    return MetricsFacts(address=address)


def ask_daemon(address: tuple[str, int], access: HttpAccess = OPEN_HTTP, *, timeout_s: float) -> DaemonFacts:
    """Request a daemon's status from its HTTP port, and return its stopped and failing partitions.

    Blocks; raises no network error: the result says why there was no answer.
    """
    url = _url(address, "/api/v1/status", access)
    try:
        status = json.loads(_get(url, access, timeout_s=timeout_s, most_bytes=_STATUS_BYTES))
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
    except (OSError, ConfigError) as error:
        return DaemonFacts(address=address, problem=f"{url}: {getattr(error, 'reason', error)}")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        return DaemonFacts(
            address=address, problem=f"{url} does not answer with a status: {type(error).__name__} {error}"
        )


def _url(address: tuple[str, int], path: str, access: HttpAccess) -> str:
    host, port = address
    scheme = "http" if access.certificate is None else "https"
    return f"{scheme}://{Address(host=reachable_host(host), port=port)}{path}"


def _get(url: str, access: HttpAccess, *, timeout_s: float, most_bytes: int) -> bytes:
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    headers = {}
    if access.certificate is not None:
        # the peer must have the key of this very certificate, whoever has signed it and whatever name is in it
        context = ssl.create_default_context(cafile=access.certificate)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        handlers.append(urllib.request.HTTPSHandler(context=context))
    if access.token is not None:
        headers["Authorization"] = CredentialFile("http.token_file", "bearer", access.token).read()
    opener = urllib.request.build_opener(*handlers)
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - http or https, from _url
    with opener.open(request, timeout=timeout_s) as answer:
        said: bytes = answer.read(most_bytes)
    return said


def wall_ms() -> int:
    """Return this machine's time in ms since 1970."""
    return int(time.time() * 1000)
