# SPDX-License-Identifier: Apache-2.0
"""Checks that a sink's path is its own, and the right volume is mounted.

The file ``_consumerd.json`` names the cluster and the group of a path, and holds a random id, its *root*. The group
records the root of each sink in ZooKeeper (:class:`~consumerd.sinks.base.RootRegistry`). So the empty folder that an
unmounted volume leaves is not taken for a new path.

Example: sink ``lake`` has the path ``/data``. The first start writes root ``3f2a`` into ``/data/_consumerd.json`` and
records it in ZooKeeper. Later the machine starts without the volume. ``/data`` has no ``_consumerd.json``, but root
``3f2a`` is recorded, so the sink waits for the volume instead of landing files on the system disk.

The file is written first and made durable, then the root is recorded:

* A crash in between leaves a path of ours without a recorded root. The next start records it.
* In the other order a crash would leave a recorded root without a path, and every start would wait for its volume.

While the daemon runs, the file is read again before each file is published (:meth:`ChainRoot.require`, in the thread
that links). A volume that is unmounted between this check and the link does no harm: hidden file and final name are in
one folder, so the hidden file is gone, too, and the link fails.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from consumerd.aio.threads import WorkThreads
from consumerd.errors import ConfigError, CoordinationError, RetriableSinkError
from consumerd.landing.chain import ROOT_RECORD, FileId, LandedEnd, RootRecord
from consumerd.landing.failures import describe_failure
from consumerd.landing.filesystem import FileSystem
from consumerd.landing.publish import claim_root, find_root
from consumerd.landing.record_fields import MalformedRecord
from consumerd.model import TopicPartition
from consumerd.sinks.base import SinkContext
from consumerd.telemetry.hooks import Trouble

_AGAIN: Final = "it is tried again"

_log = structlog.get_logger(__name__)


class ChainRoot:
    """Identity of a sink's path: the volume, cluster and group that the path belongs to.

    The path has a random id, its *root*, in the file ``_consumerd.json``, and ZooKeeper has it, too. An empty folder,
    as an unmounted volume leaves it, does not have the root.

    Args:
        shared: True if all replicas use the path; False if each replica has a path of its own.
        whose: owner of the path, for errors; None for the sink of ``context``.
    """

    def __init__(
        self,
        context: SinkContext,
        *,
        path: Path,
        shared: bool,
        files: FileSystem,
        threads: WorkThreads,
        whose: str | None = None,
    ) -> None:
        self._context = context
        self._whose = whose or f"sink {context.sink_name!r}"
        self._path = path
        self._files = files
        self._threads = threads
        self._consumer_id = None if shared else context.consumer_id
        self._nameless = not shared and context.consumer_id is None
        self._registry = None if self._nameless else context.roots
        self._known: RootRecord | None = None
        self._turn = asyncio.Lock()
        self._noting_fails = False

    async def check(self, next_file_id: Callable[[], FileId]) -> None:
        """Check that the path belongs to this group, and has the root recorded in ZooKeeper.

        The root is the random id in the path's file ``_consumerd.json``. A new path gets one, which is recorded. Raises
        ConfigError for a path of another cluster or group, or within another path; RetriableSinkError if the volume is
        not mounted.

        Args:
            next_file_id: Returns a new id for each attempt to write a file.
        """
        async with self._turn:
            try:
                if self._known is None:
                    self._known = await self._get_acquainted(next_file_id())
                else:
                    await self._threads.run(self.require)
            except OSError as error:
                raise RetriableSinkError(describe_failure(error, "use the path", self._path)) from error
            except CoordinationError as error:
                raise RetriableSinkError(
                    f"{self._path}: the root of {self._whose} could not be looked up: {error}"
                ) from error

    def require(self) -> None:
        """Raise RetriableSinkError unless the volume that :meth:`check` has seen is still mounted.

        Reads the path's file ``_consumerd.json``. Blocks; raises OSError.
        """
        found, known = find_root(self._files, self._path), self._known
        if found is None or known is None or found.root != known.root:
            raise RetriableSinkError(
                f"{self._path / ROOT_RECORD} is {'missing' if found is None else 'that of another volume'}, though it "
                f"was there before: mount the volume that was mounted when the daemon started ({_AGAIN})"
            )

    async def find_landed_end(self, partition: TopicPartition) -> LandedEnd | None:
        """Return the offset, recorded in ZooKeeper, up to which a partition has landed; or None.

        None if nothing is recorded. Raises CoordinationError.
        """
        if self._registry is None or self._known is None:
            return None
        noted = await self._registry.find_landed_end(self._known.root, partition)
        try:
            return None if noted is None else LandedEnd.parse(noted)
        except MalformedRecord as error:  # without it a removed file goes unnoticed, and nothing else is lost
            _log.info("landed_end_unreadable", sink=self._context.sink_name, partition=str(partition), error=str(error))
            return None

    async def note_landed_end(self, partition: TopicPartition, end: LandedEnd) -> None:
        """Record in ZooKeeper the offset up to which a partition has landed.

        Failures are only logged.
        """
        if self._registry is None or self._known is None:
            return
        try:
            await self._registry.note_landed_end(self._known.root, partition, end.encode())
        except CoordinationError as error:
            if not self._noting_fails:
                self._noting_fails = True
                reason = f"the end of what is landed could not be noted in ZooKeeper: {error}"
                _log.warning(
                    "landed_end_unrecorded", sink=self._context.sink_name, path=str(self._path), error=str(error)
                )
                self._context.hooks.trouble(Trouble.LANDED_END_UNRECORDED, f"{self._whose}: {reason}", partition)
        else:
            self._noting_fails = False

    async def _get_acquainted(self, file_id: FileId) -> RootRecord:
        """Compare the path's random id with the recorded one; create and record a new one."""
        context, registry = self._context, self._registry
        if self._nameless:
            self._nameless = False
            reason = (
                "shared is false and there is no group.consumer_id to record the path under: a volume that is not "
                "mounted cannot be told from a new one"
            )
            _log.warning("root_unrecorded", sink=context.sink_name, path=str(self._path), reason=reason)
            context.hooks.trouble(Trouble.ROOT_UNRECORDED, f"sink {context.sink_name}, {self._path}: {reason}")
        recorded = None
        if registry is not None:
            recorded = await registry.find(context.sink_name, consumer_id=self._consumer_id)
        found = await self._threads.run(lambda: self._look(recorded, file_id))
        if registry is not None and recorded is None:
            recorded = await registry.record(context.sink_name, found.root, consumer_id=self._consumer_id)
        if recorded is not None and found.root != recorded:
            raise RetriableSinkError(self._describe_stranger(f"has root {found.root}", recorded))
        return found

    def _look(self, recorded: str | None, file_id: FileId) -> RootRecord:
        """Return the content of the path's ``_consumerd.json``.

        Creates the file if there is none, and ZooKeeper has no id of the path. Blocks; raises OSError, ConfigError,
        RetriableSinkError.
        """
        context = self._context
        found = find_root(self._files, self._path)
        if found is None and recorded is not None:
            raise RetriableSinkError(self._describe_stranger(f"has no {ROOT_RECORD}", recorded))
        if recorded is None:
            if found is None:
                self._refuse_within()
            ours = RootRecord(root=uuid.uuid4().hex, cluster=context.cluster_id, group=context.group)
            found = claim_root(self._files, self._path, ours, file_id)
        assert found is not None
        if (found.cluster, found.group) != (context.cluster_id, context.group):
            raise ConfigError(
                f"{self._path} belongs to group {found.group!r} of cluster {found.cluster}, and this is group "
                f"{context.group!r} of cluster {context.cluster_id}: give {self._whose} another path"
            )
        return found

    def _refuse_within(self) -> None:
        for parent in self._path.parents:
            try:
                self._files.read(parent / ROOT_RECORD)
            except OSError:
                continue
            raise ConfigError(
                f"{self._path} lies within {parent}, where files are landed already: give {self._whose} "
                "a path beside it"
            )

    def _describe_stranger(self, found: str, recorded: str) -> str:
        context = self._context
        assert self._registry is not None
        place = self._registry.describe(context.sink_name, consumer_id=self._consumer_id)
        elsewhere = (
            ""
            if self._consumer_id is not None
            else ", set shared to false if each replica is to have a path of its own,"
        )
        return (
            f"{self._path} {found}, and the root of {self._whose} is {recorded}: mount the volume ({_AGAIN})"
            f"{elsewhere} or, if it is gone for good, stop the group, delete ZooKeeper node {place}, and start again"
        )
