# SPDX-License-Identifier: Apache-2.0
"""Opens source and target for the commands of ``consumerd migrate``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.admin.inspection import inspect
from consumerd.admin.migrate.comparing import LONGEST_RECORD_BYTES, RecordComparer
from consumerd.admin.migrate.mirrored import MirroredPartitions, MirrorId, MirrorReader
from consumerd.admin.migrate.reading import MirroredClusters
from consumerd.admin.migrate.target import TargetWriter, open_target_writer
from consumerd.admin.positions import read_cluster
from consumerd.client.opening import make_simple_consumer, open_access
from consumerd.client.topics import MetadataDirectory
from consumerd.config.inspection import InspectionSettings
from consumerd.errors import ConnectionLost
from consumerd.mirror.journal import JournalKey

OpenReader = Callable[[ClusterAddress, str], AbstractAsyncContextManager[MirrorReader]]
"""Opens the reader of a positions topic, by the target's address and the topic's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationSettings:
    """Settings of one command.

    Attributes:
        source: address of the source, and where its groups keep positions.
        target: address of the target.
        mirror_group: the group that mirrors.
        positions_topic: topic of the mirror's positions in the target.
    """

    source: InspectionSettings
    target: ClusterAddress
    mirror_group: str
    positions_topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMigration:
    """Both clusters, while the block of :func:`open_migration` runs.

    Attributes:
        writer: writes into the target.
        mirror: the mirror whose positions count.
    """

    clusters: MirroredClusters
    writer: TargetWriter
    mirror: MirrorId

    def find_key(self, group: str) -> JournalKey:
        """Return the key of a group's journal entry."""
        return JournalKey(self.mirror.cluster, self.mirror.group, group)

    def make_comparer(self) -> RecordComparer:
        """Return what compares records of both clusters."""
        return RecordComparer(
            *(
                make_simple_consumer(access, max_message_bytes=LONGEST_RECORD_BYTES, read_committed=True)
                for access in (self.clusters.source, self.clusters.target)
            )
        )


@asynccontextmanager
async def open_migration(
    settings: MigrationSettings, open_reader: OpenReader, timeout_s: float
) -> AsyncIterator[OpenMigration]:
    """Connect to source and target, and read what the mirror has stored.

    Args:
        timeout_s: time limit for connecting to each cluster, in seconds.

    Raises CoordinationError, ConnectionLost, NotFound without a positions topic, ConfigError if the mirror has stored
    nothing.
    """
    async with (
        inspect(settings.source, timeout_s) as source,
        open_cluster(settings.target, wait_s=timeout_s) as cluster,
        open_access(cluster) as target,
        open_reader(settings.target, settings.positions_topic) as reader,
    ):
        await target.directory.refresh("one-shot command")
        if isinstance(target.directory, MetadataDirectory) and (failure := target.directory.failure) is not None:
            # wrong passwords and unknown authorities, too: later requests would ask again and again
            raise ConnectionLost(f"target: {failure}") from failure
        mirror = MirrorId(await read_cluster(source), settings.mirror_group)
        await reader.refresh()
        mirrored = MirroredPartitions(reader, mirror)
        mirrored.require()
        clusters = MirroredClusters(
            source=source,
            target=target,
            mirrored=mirrored,
            places=settings.source.places,
            mirror_group=settings.mirror_group,
        )
        async with open_target_writer(target, settings.positions_topic) as writer:
            yield OpenMigration(clusters=clusters, writer=writer, mirror=mirror)
