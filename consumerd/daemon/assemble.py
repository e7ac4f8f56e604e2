# SPDX-License-Identifier: Apache-2.0
"""The daemon: creates all parts, runs them, and stops them in order.

``connector.member`` creates the parts of the group's member; the sinks, the status and the HTTP server are created
here. Everything runs inside :meth:`Daemon.run`; a part that fails ends it, and with it the process.

Order of a stop:

1. Leave the group: drain, flush, commit, release the partitions, delete our node.
2. Stop delivering and fetching.
3. Close sinks and connections.
4. Close the ZooKeeper session.
5. Stop listening for HTTP.

After a failure step 1 is skipped. The session is closed even then, so other members take over at once, from the
committed positions.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Final

import structlog

from consumerd import __version__
from consumerd.access.opening import ClusterConnections, open_cluster
from consumerd.aio.clock import monotonic
from consumerd.aio.loops import describe_loop
from consumerd.aio.tasks import alongside, unless
from consumerd.client.opening import ClusterAccess, open_access
from consumerd.client.topic_descriptions import make_topic_descriptions
from consumerd.config.memory import (
    SINK_SHARE,
    explain_small_budget,
    find_largest_unit,
    held_by_kind,
    plan_budgets,
)
from consumerd.config.settings import Settings
from consumerd.config.sink_paths import check_paths
from consumerd.connector.cluster_search import FoundCluster, search_cluster
from consumerd.connector.member import MemberParts, MemberSinks, make_member, plan_patience
from consumerd.connector.membership import wait_alone
from consumerd.connector.position_guard import check_other_place
from consumerd.daemon.away import AwayWatch, make_away_watch
from consumerd.daemon.describe import describe_partition, describe_sinks, explain_problems
from consumerd.daemon.http import make_application, serve
from consumerd.daemon.http_guard import ServerCertificate, TokenGuard
from consumerd.daemon.mirror import describe_mirror
from consumerd.daemon.routes import SinkRoutes, make_subscription
from consumerd.daemon.service_manager import ServiceManager
from consumerd.daemon.sinks import check_sinks
from consumerd.daemon.status import CoordinationStatus, DaemonStatus, PartitionReport, RecentEvents, RequestStatus
from consumerd.errors import SinkClosed
from consumerd.fetch.buffer import Kind, MemoryBudget
from consumerd.group.identity import MemberIdentity
from consumerd.group.status import GroupStatus
from consumerd.net.versions import parse_broker_version
from consumerd.offsets.roots import ZooKeeperQuarantineRoot, ZooKeeperRootRegistry
from consumerd.offsets.store import OffsetRequest
from consumerd.sinks.base import Quarantine, Sink, SinkContext
from consumerd.sinks.quarantine import FileQuarantine
from consumerd.sinks.registry import load_sink
from consumerd.telemetry.hooks import FanOutHooks, Hooks, Trouble
from consumerd.telemetry.metrics import MetricsHooks, make_registry
from consumerd.telemetry.wording import format_time
from consumerd.wire import kernel
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.connect_string import parse_connect_string
from consumerd.zk.layout import BROKER_IDS
from consumerd.zk.session import ChrootMissing

_MISSING_CHECK_S: Final = 5.0
"""Interval of the checks for missing topics, in seconds; a check sends no request."""
_NO_ROOTS: Final = (
    "without ZooKeeper the group does not record the roots of its sinks: a volume that is not mounted at the start "
    "cannot be told from a new path"
)
MIRROR_TYPE: Final = "kafka"
"""Type of the sinks that are mirrors."""
_STATUSES_A_TURN: Final = 500
"""Number of partitions described in one turn of the event loop, which takes about 10 ms."""

_log = structlog.get_logger(__name__)


def check_assembly(settings: Settings) -> None:
    """Check the settings' patterns, addresses and files, without connecting. Raises ConfigError."""
    make_subscription(settings)
    if settings.cluster.zookeeper is not None:
        parse_connect_string(settings.cluster.zookeeper)
    parse_broker_version(settings.cluster.broker_version)
    for tls in (settings.cluster.tls.locate(), settings.cluster.zookeeper_tls.locate()):
        if tls is not None:
            tls.make_context()
    if (login := settings.cluster.locate_zookeeper_login()) is not None:
        login.check()
    if settings.cluster.zookeeper_auth is not None:
        settings.cluster.zookeeper_auth.locate().read()
    if settings.cluster.sasl is not None:
        settings.cluster.sasl.locate().check(tls=settings.cluster.tls.enabled)
    check_paths(settings)
    MemberIdentity(group=settings.group.id, host="host", consumer_id=settings.group.consumer_id)


class Daemon:
    """The daemon of one process: one member of one group, with sinks and HTTP server.

    Args:
        manager: The service manager, such as systemd, which gets notifications of the daemon's state; None without one.
    """

    def __init__(self, settings: Settings, manager: ServiceManager | None = None) -> None:
        check_assembly(settings)
        self._settings = settings
        self._manager = manager
        self._started = monotonic()
        self._writer_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._wall = time.time
        self._recent = RecentEvents(monotonic, self._wall)
        self._metrics = make_registry()
        self._hooks = FanOutHooks(MetricsHooks(self._metrics, self._wall), self._recent)
        self._tls_ends = _read_tls_ends(settings)
        place = "ZooKeeper" if settings.cluster.zookeeper is not None else "brokers"
        self._waiting: str | None = f"waiting for {place} at {settings.cluster.place}"
        self._zk: AiozkClient | None = None
        self._running: MemberParts | None = None
        self._mirrors = frozenset(
            one.sink for one in settings.subscriptions if settings.sinks[one.sink].type == MIRROR_TYPE
        )
        self._away: AwayWatch | None = None

    def _serve_http(self, address: tuple[str, int]) -> AbstractAsyncContextManager[tuple[str, int]]:
        """Serve metrics, health and status while the block runs. Raises ConfigError."""
        http = self._settings.http
        guard = certificate = None
        if http.token_file is not None:
            guard = TokenGuard(http.token_file, self._hooks)
            guard.check()
        if http.certificate_file is not None and http.key_file is not None:
            certificate = ServerCertificate(http.certificate_file, http.key_file, self._hooks)
        return serve(make_application(self.read_status, self._metrics, guard), *address, certificate)

    async def run(self, stop: asyncio.Event) -> None:
        """Run the daemon until ``stop`` is set, and stop in order.

        May be called once. Raises ConfigError, and the exception of a part that fails.
        """
        settings = self._settings
        async with AsyncExitStack() as stack:
            if settings.http.address is not None:
                host, port = await stack.enter_async_context(self._serve_http(settings.http.address))
                shown = f"[{host}]" if ":" in host else host
                scheme = "http" if settings.http.certificate_file is None else "https"
                _log.info("http_started", url=f"{scheme}://{shown}:{port}", token=settings.http.token_file is not None)
            if self._manager is not None:
                reporting = self._manager.report(self.read_status, stop)
                await stack.enter_async_context(alongside(reporting, name="service manager"))
            cluster = await stack.enter_async_context(
                open_cluster(
                    settings.cluster.locate(
                        client_id=settings.group.id, session_timeout_ms=settings.group.session_timeout_ms
                    ),
                    wait_s=None,
                    hooks=self._hooks,
                    max_answer_bytes=max(settings.fetch.max_message_bytes, settings.fetch.max_response_bytes),
                    receive_buffer_bytes=settings.fetch.receive_buffer_bytes or None,
                )
            )
            found = await self._find_cluster(cluster, stop)
            if found is None:
                return
            cluster, cluster_id = cluster.adopt(found.generation), found.id
            await unless(stop, self._wait_alone(cluster))
            self._waiting = "comparing the group's positions in ZooKeeper with those in Kafka"
            await unless(stop, check_other_place(cluster, settings, make_subscription(settings), hooks=self._hooks))
            if stop.is_set():
                return
            access = await stack.enter_async_context(
                open_access(cluster, read_committed=settings.fetch.isolation == "read_committed", consumes=True)
            )
            budgets = plan_budgets(settings)
            if small := explain_small_budget(settings):
                _log.warning("memory_budget_small", reason=small)
                self._hooks.trouble(Trouble.MEMORY_BUDGET_SMALL, small)
            if not access.has_zookeeper:
                # info, not a trouble: it is so at every start, and nothing can be done about it
                _log.info("roots_unrecorded", reason=_NO_ROOTS)
            sinks = self._make_sinks(access, cluster_id, budgets)
            for sink in sinks.values():
                stack.push_async_callback(sink.close)
            quarantine = self._make_quarantine(access, cluster_id)
            if quarantine is not None:
                stack.push_async_callback(quarantine.close)
            await check_sinks(sinks if quarantine is None else {**sinks, "quarantine": quarantine}, self._hooks)
            self._running = self._make_member(access, budgets, sinks, quarantine, cluster_id, stop)
            self._waiting = None
            await self._consume(self._running, stop)

    async def _find_cluster(self, cluster: ClusterConnections, stop: asyncio.Event) -> FoundCluster | None:
        """Wait for the cluster; return its id and generation, or None after ``stop``."""
        if cluster.session is not None:
            self._zk = cluster.session
            await unless(stop, _wait_usable(self._zk, self._hooks))
            if stop.is_set():
                return None
            self._wait_for_brokers(f"{BROKER_IDS} was not read yet")
        return await unless(
            stop,
            search_cluster(cluster, self._settings, hooks=self._hooks, waiting=self._wait_for_brokers),
        )

    async def _wait_alone(self, cluster: ClusterConnections) -> None:
        def wait(reason: str) -> None:
            self._waiting = reason

        await wait_alone(cluster, self._settings, hooks=self._hooks, waiting=wait)

    def _wait_for_brokers(self, reason: str) -> None:
        if self._zk is None:
            self._waiting = f"waiting for brokers at {self._settings.cluster.place}: {reason}"
        else:
            self._waiting = f"waiting for brokers under the chroot {self._zk.address.chroot or '/'}: {reason}"

    async def _consume(self, member: MemberParts, stop: asyncio.Event) -> None:
        topics = member.membership.topics
        watch = self._away = make_away_watch(member.access, self._settings.group.id, lambda: topics.value, self._hooks)
        async with (
            alongside(self._report_missing(member), name="report missing topics"),
            alongside(watch.run(), name="watch for partitions that are away"),
        ):
            await member.run(stop, patience_s=plan_patience(self._settings))

    def _find_missing(self, parts: MemberParts) -> tuple[str, ...]:
        """Return subscribed topic names that the cluster lacks; none before the group was read."""
        if not parts.membership.assigned:
            return ()
        wanted = {topic for subscription in self._settings.subscriptions for topic in subscription.topics}
        return tuple(sorted(wanted - parts.membership.topics.value - parts.membership.denied.keys()))

    def _find_absent(self, parts: MemberParts) -> tuple[str, ...]:
        """Return topics and partitions of the subscription that cannot be read now."""
        away = self._away.status if self._away is not None else ()
        gone = [partition for one in away for partition in one.partitions]
        return (*self._find_missing(parts), *sorted(parts.membership.denied), *gone)

    async def _report_missing(self, parts: MemberParts) -> None:
        """Log each missing topic once; it may be a misspelt name."""
        told: frozenset[str] = frozenset()
        while True:
            await asyncio.sleep(_MISSING_CHECK_S)
            missing = frozenset(self._find_missing(parts))
            if missing - told:
                _log.warning("topics_missing", topics=sorted(missing - told))
            if told - missing:
                _log.info("topics_found", topics=sorted(told - missing))
            told = missing

    # -- making the parts

    def _make_sinks(
        self, access: ClusterAccess, cluster_id: str, budgets: Mapping[str, MemoryBudget]
    ) -> dict[str, Sink]:
        settings = self._settings
        descriptions = make_topic_descriptions(access)
        sinks = {}
        for name, budget in budgets.items():
            chosen = settings.sinks[name]
            factory = load_sink(chosen.type)
            context = SinkContext(
                sink_name=name,
                group=settings.group.id,
                cluster_id=cluster_id,
                writer_id=self._writer_id,
                now=monotonic,
                charge=budget.charge,
                buffer_bytes=budget.limit_bytes // SINK_SHARE,
                hooks=self._hooks,
                consumer_id=settings.group.consumer_id,
                roots=ZooKeeperRootRegistry(access.zk, settings.group.id) if access.has_zookeeper else None,
                source_topics=descriptions,
            )
            sinks[name] = factory(context, factory.Options.model_validate(chosen.options))
        return sinks

    def _make_quarantine(self, access: ClusterAccess, cluster_id: str) -> FileQuarantine | None:
        if self._settings.quarantine.path is None:
            return None
        return FileQuarantine(
            self._settings.quarantine.path,
            group=self._settings.group.id,
            cluster_id=cluster_id,
            writer_id=self._writer_id,
            wall_ms=lambda: int(time.time() * 1000),
            roots=ZooKeeperQuarantineRoot(access.zk, self._settings.group.id) if access.has_zookeeper else None,
        )

    def _make_member(
        self,
        access: ClusterAccess,
        budgets: Mapping[str, MemoryBudget],
        sinks: Mapping[str, Sink],
        quarantine: Quarantine | None,
        cluster_id: str,
        stop: asyncio.Event,
    ) -> MemberParts:
        charges = {name: partial(budget.charge, kind=Kind.QUARANTINE) for name, budget in budgets.items()}
        return make_member(
            access,
            self._settings,
            make_subscription(self._settings),
            MemberSinks(
                budgets=budgets,
                largest_unit_bytes=find_largest_unit(self._settings, budgets),
                route=SinkRoutes(self._settings, sinks, charges).find,
                quarantine=quarantine,
                closed=lambda error: _end(stop, error),
            ),
            cluster_id=cluster_id,
            hooks=self._hooks,
        )

    # -- status

    async def read_status(self) -> DaemonStatus:
        """Return the daemon's current status.

        With thousands of partitions this takes several turns of the event loop, so partitions are read at slightly
        different times.
        """
        partitions: list[PartitionReport] = []
        if (parts := self._running) is not None:
            for some in parts.deliveries.read_statuses(_STATUSES_A_TURN):
                now_ms = self._wall() * 1000
                partitions += (describe_partition(one, self._recent, now_ms=now_ms) for one in some)
                await asyncio.sleep(0)
        return self._make_status(tuple(partitions))

    def _make_status(self, partitions: tuple[PartitionReport, ...]) -> DaemonStatus:
        parts, zk = self._running, self._zk
        group = parts.membership.status if parts is not None else None
        session = zk.state if zk is not None else None
        reasons = [] if self._waiting is None else [self._waiting]
        if group is not None and group.unready_reason is not None:
            reasons.append(group.unready_reason)
        return DaemonStatus(
            version=__version__,
            kernel=kernel.describe(),
            loop=describe_loop(asyncio.get_running_loop()),
            uptime_s=monotonic() - self._started,
            ready=not reasons,
            not_ready=tuple(reasons),
            group=self._settings.group.id,
            positions=self._settings.offsets.kept_in,
            consumer_id=group.consumer if group is not None else None,
            state=group.state.value if group is not None else "starting",
            session_epoch=session.epoch if session is not None else 0,
            session_id=hex(session.session_id) if session is not None else "0x0",
            session_phase=session.phase.value if session is not None else "none",
            members=parts.membership.members if parts is not None else 0,
            desired=len(group.desired) if group is not None else 0,
            owned=len(group.owned) if group is not None else 0,
            partitions=partitions,
            conflicts={
                str(one.partition): one.holder.thread if one.holder is not None else "nobody known"
                for one in (group.conflicts if group is not None else ())
            },
            disagreements=tuple(str(one) for one in (group.disagreements if group is not None else ())),
            missing_topics=self._find_missing(parts) if parts is not None else (),
            away=self._away.status if self._away is not None else (),
            denied_topics=parts.membership.denied if parts is not None else {},
            rebalances=self._recent.rebalances(),
            events=self._recent.events(),
            buffered_bytes=held_by_kind(self._settings, parts.budgets) if parts is not None else {},
            memory_budget_bytes=self._settings.fetch.memory_budget_bytes,
            tls_ends=self._tls_ends,
            tickets=self._recent.tickets,
            coordination=None if group is None else _describe_coordination(group),
            requests=tuple(map(_describe_request, parts.requests.waiting)) if parts is not None else (),
            group_partitions=parts.membership.group_partitions if parts is not None else 0,
            sinks=describe_sinks(parts.budgets, parts.fetchers.find_held_up(), partitions, self._recent)
            if parts is not None
            else (),
            problems=tuple(explain_problems(partitions)),
            mirror=describe_mirror(
                partitions,
                mirrors=self._mirrors,
                not_ready=reasons,
                group_partitions=parts.membership.group_partitions if parts is not None else 0,
                absent=self._find_absent(parts) if parts is not None else (),
            ),
        )


def _describe_coordination(group: GroupStatus) -> CoordinationStatus | None:
    found = group.coordination
    if found is None:
        return None
    return CoordinationStatus(
        coordinator=found.coordinator,
        generation=found.generation,
        member_id=found.member_id,
        leader=found.leader,
        assignor=found.assignor,
        phase=found.phase.value,
    )


def _describe_request(request: OffsetRequest) -> RequestStatus:
    asked = format_time(request.created_ms)
    return RequestStatus(
        topic=request.partition.topic,
        partition=str(request.partition.partition),
        position=request.position,
        new_chain=request.new_chain,
        author=request.author,
        asked=asked,
    )


def _end(stop: asyncio.Event, error: SinkClosed) -> None:
    if not stop.is_set():
        _log.info("sink_closed", reason=str(error))
        stop.set()


def _read_tls_ends(settings: Settings) -> Mapping[str, float]:
    """Return the end of the certificates in each file of TLS.

    The names of ZooKeeper's files have a prefix.
    """
    ends: dict[str, float] = {}
    for prefix, tls in (("", settings.cluster.tls), ("zookeeper_", settings.cluster.zookeeper_tls)):
        if (files := tls.locate()) is not None:
            ends |= {f"{prefix}{name}": end for name, end in files.read_ends().items()}
    return ends


async def _wait_usable(zk: AiozkClient, hooks: Hooks) -> None:
    """Wait for a session; only report a missing chroot.

    While servers refuse our identity, the session goes on trying, and reports why: a password may be mended.
    """
    # brokers create the chroot when they start
    try:
        await zk.wait_connected(patient=True)
    except ChrootMissing as error:
        _log.warning("chroot_missing", reason=str(error))
        hooks.trouble(Trouble.CHROOT_MISSING, str(error))
