# SPDX-License-Identifier: Apache-2.0
"""Runs ``consumerd doctor``: reads the state of a group, checks it, sorts the problems."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from consumerd.admin.doctor.facts import LandingFacts, RegistryFacts
from consumerd.admin.doctor.grants import check_grants, read_grants
from consumerd.admin.doctor.kafka_checks import check_kafka_positions
from consumerd.admin.doctor.kafka_group import read_kafka_facts
from consumerd.admin.doctor.landing_checks import PATH_REFUSED, check_landing
from consumerd.admin.doctor.mirror_checks import examine_targets
from consumerd.admin.doctor.position_checks import check_positions
from consumerd.admin.doctor.reading import find_landed_folders, read_landing, read_logs, read_registry, read_root
from consumerd.admin.doctor.registry_checks import check_registry
from consumerd.admin.doctor.settings_checks import check_settings
from consumerd.admin.doctor.surroundings import (
    FolderFacts,
    HttpAccess,
    ask_daemon,
    ask_metrics,
    compare_clocks,
    try_folder,
    wall_ms,
)
from consumerd.admin.doctor.surroundings_checks import (
    HTTP_OFF,
    check_clocks,
    check_daemon,
    check_folder,
    check_member_rights,
    check_metrics,
)
from consumerd.admin.inspection import inspect, require_group
from consumerd.aio.threads import WorkThreads
from consumerd.aio.timeouts import timeout
from consumerd.client.opening import ClusterAccess
from consumerd.config.inspection import InspectionSettings
from consumerd.config.settings import Settings
from consumerd.config.sink_paths import landing_options
from consumerd.delivery.policy import OffsetPolicy
from consumerd.group.assignors import Strategy
from consumerd.landing.findings import Finding, sort_findings
from consumerd.landing.line_compression import EXTENSIONS
from consumerd.offsets.opening import open_positions
from consumerd.sinks.jsonl import JsonlOptions
from consumerd.sinks.options import ChainOptions
from consumerd.zk.layout import root_path


async def examine(settings: InspectionSettings, full: Settings | None, *, timeout_s: float) -> Sequence[Finding]:
    """Find problems of a group for ``consumerd doctor``, without changing anything.

    Returns the findings, sorted. ZooKeeper, the brokers and the disks are each given at most ``timeout_s`` seconds.

    Args:
        full: All settings of a daemon: also these settings, and the folders and listen addresses that they name, are
            examined. None to examine the group alone.

    Raises CoordinationError if ZooKeeper is not reached, NotFound if there is no such group and ``full`` is None,
    ConfigError, TimeoutError.
    """
    assert settings.group is not None
    group = settings.group
    wanted = {topic for one in full.subscriptions for topic in one.topics} if full is not None else set()
    async with inspect(settings, timeout_s, session_timeout_ms=group.session_timeout_ms) as access:
        if not access.has_zookeeper:
            async with timeout(timeout_s):
                facts, found = await read_kafka_facts(access, group.id, topics=wanted, required=full is None)
            found += await _examine_positions(access, facts, full, timeout_s)
            found += await _examine_grants(access, facts, timeout_s)
            if full is not None:
                found += await _examine_machine(full, facts, timeout_s)
            return sort_findings(sorted(found, key=lambda one: (one.kind, one.where or "")))
        async with timeout(timeout_s):
            positions = open_positions(access.cluster, group.id)
            if full is None:
                await require_group(access, positions)
            facts = await read_registry(
                access.zk,
                access.layout,
                positions,
                places=settings.places,
                topics=wanted,
                wall_ms=wall_ms(),
                generation=access.cluster.address.generation,
                acl=access.cluster.address.node_acl,
            )
        found = check_registry(facts, Strategy(group.assignor))
        found += await _examine_positions(access, facts, full, timeout_s)
        found += await _examine_grants(access, facts, timeout_s)
        found += check_kafka_positions(
            facts,
            ignored=full is not None and full.offsets.ignore_other_place,
        )
        found += check_member_rights(facts.denied_folders)
        if full is not None:
            async with timeout(timeout_s):
                found += check_clocks(group.id, await compare_clocks(access.zk, group.id, wall_ms=wall_ms))
        negotiated_s = access.zk.state.timeout_s
    if full is not None:
        found += check_settings(full, facts, negotiated_s)
        found += await _examine_machine(full, facts, timeout_s)
    return sort_findings(sorted(found, key=lambda one: (one.kind, one.where or "")))


async def _examine_positions(
    access: ClusterAccess, facts: RegistryFacts, full: Settings | None, timeout_s: float
) -> list[Finding]:
    policy = full.offsets.fill(OffsetPolicy) if full is not None else None
    return check_positions(facts, await read_logs(access, facts, timeout_s=timeout_s), policy)


async def _examine_grants(access: ClusterAccess, facts: RegistryFacts, timeout_s: float) -> list[Finding]:
    there = [topic for topic, one in facts.topics.items() if one is not None]
    grants = await read_grants(access, there, timeout_s=timeout_s)
    return list(check_grants(grants, access.cluster.address.principal))


async def _examine_machine(settings: Settings, facts: RegistryFacts, timeout_s: float) -> list[Finding]:
    """Check the targets of mirrors, and, in threads, each path and the HTTP port.

    A hanging mount delays only the check of its own path.
    """
    threads = WorkThreads(name="doctor", count=4)
    found = await examine_targets(settings, timeout_s=timeout_s)
    try:
        for landing, kind in _paths(settings, facts):
            found += await _examine_path(threads, landing, kind, facts, timeout_s)
        if settings.http.address is None:
            found.append(HTTP_OFF)
        else:
            found += await _examine_daemon(
                threads,
                settings.http.address,
                HttpAccess(certificate=settings.http.certificate_file, token=settings.http.token_file),
                facts.group,
                timeout_s,
            )
    finally:
        await threads.close(timeout_s=0)
    return found


async def _examine_daemon(
    threads: WorkThreads, address: tuple[str, int], access: HttpAccess, group: str, timeout_s: float
) -> list[Finding]:
    metrics = await threads.run(partial(ask_metrics, address, access, timeout_s=timeout_s))
    found = list(check_metrics(metrics))
    if not metrics.problem:
        found += check_daemon(await threads.run(partial(ask_daemon, address, access, timeout_s=timeout_s)), group)
    return found


async def _examine_path(
    threads: WorkThreads, landing: LandingFacts, kind: str | None, facts: RegistryFacts, timeout_s: float
) -> list[Finding]:
    try:
        async with timeout(timeout_s):
            found = check_landing(facts, await threads.run(partial(_read_path, landing, kind)))
            if any(one.kind in PATH_REFUSED for one in found):
                return found  # never write to another group's path, or to the mount point of an absent volume
            folder = await threads.run(partial(_try_folders, landing))
    except TimeoutError:
        problem = f"{landing.path} does not answer within {timeout_s:g} s"
        return check_landing(facts, LandingFacts(setting=landing.setting, path=landing.path, problem=problem))
    return [*found, *check_folder(folder, _user())]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # a container's user without a name


def _paths(settings: Settings, facts: RegistryFacts) -> Iterator[tuple[LandingFacts, str | None]]:
    for name, options in landing_options(settings).items():
        landing = LandingFacts(setting=f"sinks.{name}.path", path=options.path.absolute())
        consumer_id = settings.group.consumer_id
        if options.shared or consumer_id is not None:  # else the replica is unknown, and nothing is recorded
            at = root_path(facts.group, name, None if options.shared else consumer_id)
            landing = replace(landing, recorded_at=at, recorded_root=facts.roots.get(at))
        yield landing, _extension_of(settings.sinks[name].type, options)
    if settings.quarantine.path is not None:
        yield LandingFacts(setting="quarantine.path", path=settings.quarantine.path.absolute()), None


def _extension_of(kind: str, options: ChainOptions) -> str:
    return EXTENSIONS[options.compression] if isinstance(options, JsonlOptions) else kind


def _read_path(landing: LandingFacts, extension: str | None) -> LandingFacts:
    return read_root(landing) if extension is None else read_landing(landing, extension)


def _try_folders(landing: LandingFacts) -> FolderFacts:
    return try_folder(landing.setting, landing.path, within=list(find_landed_folders(landing.path)))
