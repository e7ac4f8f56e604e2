# SPDX-License-Identifier: Apache-2.0
"""The daemon: makes the parts, joins them, owns them, and ends them in order.

The only place, with ``access``, that knows concrete classes. Everything runs inside the block of :meth:`Daemon.run`; a
part that fails ends the block, and with it the process, visibly.

Order of an end: leave the group (drain, flush, commit, release, delete our node), stop delivering and fetching, close
sinks and connections, end the session, stop listening. An end that comes from a failure skips the first step: the
session is closed all the same, so that others take over at once, from what was committed.
"""

from __future__ import annotations

import asyncio
import operator
import os
import random
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from consumerd import __version__
from consumerd.access.opening import open_cluster
from consumerd.aio.clock import monotonic
from consumerd.aio.loops import describe_loop
from consumerd.aio.tasks import alongside, unless
from consumerd.client.opening import ClusterAccess, open_access
from consumerd.config.memory import (
    SINK_SHARE,
    explain_small_budget,
    find_largest_unit,
    held_by_kind,
    plan_budgets,
)
from consumerd.config.settings import Settings
from consumerd.config.sink_paths import check_paths
from consumerd.daemon.cluster_search import find_cluster
from consumerd.daemon.describe import describe_partition, describe_sinks, explain_problems
from consumerd.daemon.http import make_application, serve
from consumerd.daemon.routes import SinkRoutes, make_subscription
from consumerd.daemon.service_manager import ServiceManager
from consumerd.daemon.sink_fetchers import SinkFetchers
from consumerd.daemon.sinks import check_sinks
from consumerd.daemon.status import DaemonStatus, PartitionReport, RecentEvents, RequestStatus
from consumerd.delivery.deliveries import Deliveries
from consumerd.delivery.policy import OffsetPolicy
from consumerd.delivery.ports import DeliveryReports, DeliverySettings
from consumerd.errors import SinkClosed
from consumerd.fetch.buffer import Kind, MemoryBudget
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.ports import FetchSettings
from consumerd.group.admission import Admission
from consumerd.group.assignors import Strategy
from consumerd.group.identity import MemberIdentity
from consumerd.group.rebalancer import Rebalancer
from consumerd.group.settings import RebalanceSettings
from consumerd.net.pool import PoolShare
from consumerd.net.versions import parse_broker_version
from consumerd.offsets.history import ZooKeeperPartitionHistory
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.roots import ZooKeeperQuarantineRoot, ZooKeeperRootRegistry
from consumerd.offsets.store import OffsetRequest
from consumerd.offsets.truncations import ZooKeeperLogTruncations
from consumerd.offsets.zookeeper import ZooKeeperOffsetStore
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

_SHUTDOWN_RESERVE: Final = 0.2
"""The part of ``shutdown.timeout_ms`` that is kept for what follows leaving the group, besides ending the session."""

_MISSING_CHECK_S: Final = 5.0
"""Interval between two looks for topics that are subscribed to by name and missing; costs no request."""
_STATUSES_A_TURN: Final = 500
"""Partitions described in one turn of the event loop, which takes about ten milliseconds."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """What there is once the cluster has been found."""

    access: ClusterAccess
    budgets: Mapping[str, MemoryBudget]
    fetchers: SinkFetchers
    deliveries: Deliveries
    requests: ZooKeeperOffsetRequests
    rebalancer: Rebalancer


def check_assembly(settings: Settings) -> None:
    """Check what can be checked without connecting: patterns, addresses, files. Raises ConfigError."""
    make_subscription(settings)
    parse_connect_string(settings.cluster.zookeeper)
    parse_broker_version(settings.cluster.broker_version)
    if (tls := settings.cluster.tls.locate()) is not None:
        tls.make_context()
    check_paths(settings)
    MemberIdentity(group=settings.group.id, host="host", consumer_id=settings.group.consumer_id)


class Daemon:
    """One member of one group, from settings to its end. ``manager`` is told of the daemon's state, where there is one."""

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
        self._waiting: str | None = f"waiting for ZooKeeper at {settings.cluster.zookeeper}"
        self._zk: AiozkClient | None = None
        self._running: _Running | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set. Raises ConfigError and what a part failed with."""
        settings = self._settings
        async with AsyncExitStack() as stack:
            if settings.http.address is not None:
                application = make_application(self.read_status, self._metrics)
                host, port = await stack.enter_async_context(serve(application, *settings.http.address))
                shown = f"[{host}]" if ":" in host else host
                _log.info("http_started", url=f"http://{shown}:{port}")
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
            self._zk = cluster.zk
            await unless(stop, _wait_usable(self._zk, self._hooks))
            if stop.is_set():
                return
            self._wait_for_brokers(f"{BROKER_IDS} was not read yet")
            cluster_id = await unless(
                stop, find_cluster(self._zk, settings.cluster, hooks=self._hooks, waiting=self._wait_for_brokers)
            )
            if cluster_id is None:
                return
            access = await stack.enter_async_context(
                open_access(cluster, read_committed=settings.fetch.isolation == "read_committed")
            )
            budgets = plan_budgets(settings)
            if small := explain_small_budget(settings):
                _log.warning("memory_budget_small", reason=small)
                self._hooks.trouble(Trouble.MEMORY_BUDGET_SMALL, small)
            sinks = self._make_sinks(access, cluster_id, budgets)
            for sink in sinks.values():
                stack.push_async_callback(sink.close)
            quarantine = self._make_quarantine(access, cluster_id)
            if quarantine is not None:
                stack.push_async_callback(quarantine.close)
            await check_sinks(sinks if quarantine is None else {**sinks, "quarantine": quarantine}, self._hooks)
            self._running = self._make_parts(access, budgets, sinks, quarantine, cluster_id, stop)
            self._waiting = None
            await self._consume(self._running, stop)

    def _wait_for_brokers(self, reason: str) -> None:
        assert self._zk is not None  # made before anything is waited for
        self._waiting = f"waiting for brokers under the chroot {self._zk.address.chroot or '/'}: {reason}"

    async def _consume(self, parts: _Running, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            working = [
                tasks.create_task(parts.fetchers.run(), name="fetchers"),
                tasks.create_task(parts.deliveries.run(), name="deliveries"),
                tasks.create_task(parts.requests.run(), name="operators' requests"),
                tasks.create_task(self._follow_topics(parts), name="follow topics"),
                tasks.create_task(parts.rebalancer.run(), name="rebalancer"),
                tasks.create_task(self._report_missing(parts), name="report missing topics"),
            ]
            await stop.wait()
            began = monotonic()
            patience_s = plan_patience(self._settings)
            in_time = await parts.rebalancer.leave(patience_s)
            _log.info("group_left", seconds=round(monotonic() - began, 3), in_time=in_time)
            for task in working:
                task.cancel()

    async def _follow_topics(self, parts: _Running) -> None:
        """Keep the cluster's view about the topics that are ours to consume."""
        while True:
            seen = parts.rebalancer.topics.value
            parts.access.directory.follow(seen)
            await parts.rebalancer.topics.wait(partial(operator.ne, seen))

    def _find_missing(self, parts: _Running) -> tuple[str, ...]:
        """Return the topics subscribed to by name that the cluster does not have, as far as the group was read."""
        if not parts.rebalancer.assigned:
            return ()
        wanted = {topic for subscription in self._settings.subscriptions for topic in subscription.topics}
        return tuple(sorted(wanted - parts.rebalancer.topics.value - parts.rebalancer.denied.keys()))

    async def _report_missing(self, parts: _Running) -> None:
        """Tell once of each topic that is not there: a name that is misspelt looks like a topic without records."""
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
                roots=ZooKeeperRootRegistry(access.zk, settings.group.id),
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
            roots=ZooKeeperQuarantineRoot(access.zk, self._settings.group.id),
        )

    def _make_fetchers(self, access: ClusterAccess, budgets: Mapping[str, MemoryBudget]) -> dict[str, Fetcher]:
        fetch = self._settings.fetch
        settings = FetchSettings(
            max_partition_bytes=fetch.max_partition_bytes,
            max_message_bytes=find_largest_unit(self._settings, budgets),
            max_response_bytes=fetch.max_response_bytes,
            max_wait_ms=fetch.max_wait_ms,
            min_bytes=fetch.min_bytes,
            read_committed=fetch.isolation == "read_committed",
            request_timeout_s=self._settings.cluster.request_timeout_ms / 1000,
            identity=_describe_identity(self._settings),
        )
        return {
            name: Fetcher(
                settings=settings,
                budget=budget,
                leaders=access.directory,
                connections=PoolShare(access.pool, name),
                log_ranges=access.ranges,
                hooks=self._hooks,
                now=monotonic,
                random=random.random,
            )
            for name, budget in budgets.items()
        }

    def _make_parts(
        self,
        access: ClusterAccess,
        budgets: Mapping[str, MemoryBudget],
        sinks: Mapping[str, Sink],
        quarantine: Quarantine | None,
        cluster_id: str,
        stop: asyncio.Event,
    ) -> _Running:
        settings, fetch, offsets = self._settings, self._settings.fetch, self._settings.offsets
        charges = {name: partial(budget.charge, kind=Kind.QUARANTINE) for name, budget in budgets.items()}
        routes = SinkRoutes(settings, sinks, charges)
        fetchers = SinkFetchers(self._make_fetchers(access, budgets), lambda partition: routes.find(partition).name)
        requests = ZooKeeperOffsetRequests(access.zk, settings.group.id, hooks=self._hooks)
        deliveries = Deliveries(
            route=routes.find,
            feeds=fetchers,
            store=ZooKeeperOffsetStore(
                access.zk,
                settings.group.id,
                hooks=self._hooks,
                denied=lambda topic: rebalancer.report_denied(topic),  # noqa: PLW0108 - it is made below
            ),
            ranges=access.ranges,
            history=ZooKeeperPartitionHistory(access.zk, settings.group.id),
            requests=requests,
            truncations=ZooKeeperLogTruncations(access.zk, settings.group.id),
            quarantine=quarantine,
            settings=DeliverySettings(
                offsets=OffsetPolicy(
                    on_missing=offsets.on_missing, on_below=offsets.on_below, on_above=offsets.on_above
                ),
                on_corrupt=fetch.on_corrupt,
                on_oversized=fetch.on_oversized,
                commit_interval_ms=offsets.commit_interval_ms,
                read_committed=fetch.isolation == "read_committed",
            ),
            reports=DeliveryReports(
                lost=lambda claim, error: rebalancer.report_lost(claim, str(error)),
                sink_closed=lambda error: _end(stop, error),
            ),
            hooks=self._hooks,
            now=monotonic,
            random=random.random,
        )
        rebalancer = Rebalancer(
            access.zk,
            identity=MemberIdentity(
                group=settings.group.id, host=socket.gethostname(), consumer_id=settings.group.consumer_id
            ),
            subscription=make_subscription(settings),
            listener=deliveries,
            now=monotonic,
            wall_ms=lambda: int(time.time() * 1000),
            random=random.Random(),
            strategy=Strategy(settings.group.assignor),
            settings=RebalanceSettings(**settings.rebalance.model_dump()),
            hooks=self._hooks,
            admit=Admission(
                access.zk,
                settings.group.id,
                cluster_id=cluster_id,
                about={"consumerd": __version__, "host": socket.gethostname(), "pid": str(os.getpid())},
            ).admit,
        )
        return _Running(
            access=access,
            budgets=budgets,
            fetchers=fetchers,
            deliveries=deliveries,
            requests=requests,
            rebalancer=rebalancer,
        )

    # -- status

    async def read_status(self) -> DaemonStatus:
        """Return everything as it stands; thousands of partitions are gone through in several turns of the loop."""
        partitions: list[PartitionReport] = []
        if (parts := self._running) is not None:
            for some in parts.deliveries.read_statuses(_STATUSES_A_TURN):
                now_ms = self._wall() * 1000
                partitions += (describe_partition(one, self._recent, now_ms=now_ms) for one in some)
                await asyncio.sleep(0)
        return self._make_status(tuple(partitions))

    def _make_status(self, partitions: tuple[PartitionReport, ...]) -> DaemonStatus:
        parts, zk = self._running, self._zk
        group = parts.rebalancer.status if parts is not None else None
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
            consumer_id=group.consumer if group is not None else None,
            state=group.state.value if group is not None else "starting",
            session_epoch=session.epoch if session is not None else 0,
            session_id=hex(session.session_id) if session is not None else "0x0",
            session_phase=session.phase.value if session is not None else "none",
            members=parts.rebalancer.members if parts is not None else 0,
            desired=len(group.desired) if group is not None else 0,
            owned=len(group.owned) if group is not None else 0,
            partitions=partitions,
            conflicts={
                str(one.partition): one.holder.thread if one.holder is not None else "nobody known"
                for one in (group.conflicts if group is not None else ())
            },
            disagreements=tuple(str(one) for one in (group.disagreements if group is not None else ())),
            missing_topics=self._find_missing(parts) if parts is not None else (),
            denied_topics=parts.rebalancer.denied if parts is not None else {},
            rebalances=self._recent.rebalances(),
            events=self._recent.events(),
            buffered_bytes=held_by_kind(self._settings, parts.budgets) if parts is not None else {},
            memory_budget_bytes=self._settings.fetch.memory_budget_bytes,
            requests=tuple(map(_describe_request, parts.requests.waiting)) if parts is not None else (),
            group_partitions=parts.rebalancer.group_partitions if parts is not None else 0,
            sinks=describe_sinks(parts.budgets, parts.fetchers.find_held_up(), partitions, self._recent)
            if parts is not None
            else (),
            problems=tuple(explain_problems(partitions)),
        )


def _describe_identity(settings: Settings) -> str:
    """Say who brokers take us for, as far as that is known here."""
    if settings.cluster.tls.certificate_file is None:
        return "User:ANONYMOUS (no client certificate is set)"
    return f"the subject of the certificate {settings.cluster.tls.certificate_file}"


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


def plan_patience(settings: Settings) -> float:
    """Return how long leaving the group may take, in seconds, so that all of a stop stays within its timeout.

    Ending the session may take a third of it where ZooKeeper does not answer.
    """
    timeout_s = settings.shutdown.timeout_ms / 1000
    session_end_s = settings.group.session_timeout_ms / 1000 / 3
    return max(timeout_s * (1 - _SHUTDOWN_RESERVE) - session_end_s, timeout_s / 4)


def _end(stop: asyncio.Event, error: SinkClosed) -> None:
    if not stop.is_set():
        _log.info("sink_closed", reason=str(error))
        stop.set()


async def _wait_usable(zk: AiozkClient, hooks: Hooks) -> None:
    """Wait for a session. A chroot that is not there is no reason to end: brokers make it when they start."""
    try:
        await zk.wait_connected()
    except ChrootMissing as error:
        _log.warning("chroot_missing", reason=str(error))
        hooks.trouble(Trouble.CHROOT_MISSING, str(error))
