# SPDX-License-Identifier: Apache-2.0
"""Members of two versions of us in one group, over one landing folder: an upgrade and its roll-back, while records flow."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from consumerd import __version__
from tests.interop.conftest import ClusterFactory
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster, Sent
from tests.support.landing_check import find_faults, log_ends, wait_landed
from tests.support.landing_reader import LandedChain, read_landing
from tests.support.load import SteadyLoad
from tests.support.other_version import ADDED, FORMAT_1_COMMIT, VERSION, make_format_1_version, make_other_version
from tests.support.registry import Registry, open_registry

pytestmark = [pytest.mark.records, pytest.mark.drawn]

PARTITIONS = 4
PER_PARTITION = 25


@dataclass(frozen=True, slots=True)
class Group:
    """A group and its topic, which have one name; members go when the stack does."""

    cluster: Cluster
    name: str
    folder: Path
    registry: Registry
    stack: contextlib.ExitStack
    other: str

    @property
    def landing(self) -> Path:
        """Where all versions land."""
        return self.folder / "landing"

    def start(self, member: str, *, other: bool) -> Daemon:
        """Start a member of the one version or the other."""
        settings = settings_for(
            self.cluster.zookeeper,
            self.name,
            topics=(self.name,),
            sink={"type": "parquet", "path": str(self.landing), "roll_ms": 400},
            group={"session_timeout_ms": 3000},
            offsets={"commit_interval_ms": 300},
            log={"level": "info"},
        )
        path = (self.other,) if other else ()
        daemon = self.stack.enter_context(Daemon(self.folder, member, settings, python_path=path))
        daemon.wait_ready()
        assert daemon.status()["version"] == (VERSION if other else __version__)
        return daemon

    def wait_shared(self, member: Daemon, count: int) -> None:
        """Wait until so many members share by the rule, and positions of every partition move."""
        member.wait(
            lambda: (
                len(self.registry.members(self.name)) == count
                and self.registry.is_settled(self.name, self.name, PARTITIONS)
            ),
            f"{count} members share by the rule",
            40,
        )
        member.wait(lambda: len(self.offsets()) == PARTITIONS, "a commit of every partition")
        before = self.offsets()
        member.wait(lambda: all(self.offsets()[one] > before[one] for one in before), "another one of each")

    def offsets(self) -> dict[int, int]:
        """Return the committed positions."""
        return self.registry.offsets(self.name, self.name)

    def move_to_start(self, partition: int, *, other: bool) -> str:
        """Ask for a partition from its beginning, with the command of either version; return what came of it."""
        command = [sys.executable, "-m", "consumerd", "offsets", "set", "-z", self.cluster.zookeeper, "-g", self.name]
        command += [f"{self.name}/{partition}=0", "--yes", "--json"]
        environment = os.environ | ({"PYTHONPATH": self.other} if other else {})
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=environment, cwd=self.folder
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return str(json.loads(done.stdout)["outcome"])

    def chain(self, partition: int, number: int) -> LandedChain:
        """Return a chain, by its number; nothing is wrong with any."""
        landing = read_landing(self.landing)
        assert landing.problems == []
        return landing.partitions[self.name, str(partition)].chains[number - 1]


@pytest.mark.timeout(150)
def test_members_of_two_versions_hand_over_to_each_other(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """What the other version says besides is passed over: registrations, roots, chains, files and requests are read, and
    in whatever order versions come, go and die, each record lands once.
    """
    cluster, name = shared_clusters(release), unique("versions")
    cluster.create_topic(name, PARTITIONS)
    other = make_other_version(tmp_path / "later")
    producer = cluster.ledger_producer(linger_ms="5")
    with open_registry(cluster.zookeeper) as registry, contextlib.ExitStack() as stack:
        group = Group(cluster, name, tmp_path, registry, stack, other)
        with SteadyLoad(producer, {name: PARTITIONS}, per_second=PER_PARTITION):
            ours, theirs = _come_and_go(group)
        ledger = producer.finish()
        wait_landed(group.landing, ledger)
        assert find_faults(group.landing, ledger) == []

        # each version's request is carried out by the other one
        of_ours, of_theirs = (min(partition for _, partition in member.owned()) for member in (ours, theirs))
        assert group.move_to_start(of_ours, other=True) == "carried out"
        assert group.move_to_start(of_theirs, other=False) == "carried out"
        ends = {partition: end for (_, partition), end in log_ends(ledger).items()}
        ours.wait(lambda: group.offsets() == ends, "everything is landed again, and committed")

        # and a chain that one version began is gone on with by the other
        assert theirs.terminate() == 0, theirs.log()[-3000:]
        more = cluster.ledger_producer()
        more.send(Sent(name, of_theirs, None, b"more") for _ in range(10))
        more.finish()
        ends[of_theirs] += 10
        ours.wait(lambda: group.offsets() == ends, "what came later is committed")
        assert ours.terminate() == 0, ours.log()[-3000:]

    by_ours, by_theirs = group.chain(of_ours, 2), group.chain(of_theirs, 2)
    assert (ADDED in by_ours.record, ADDED in by_theirs.record) == (False, True)
    assert {ADDED in file.metadata for file in by_theirs.files} == {False, True}
    assert (by_ours.end, by_theirs.end) == (ends[of_ours], ends[of_theirs])
    assert ADDED in (read_landing(group.landing).root or {})


def _come_and_go(group: Group) -> tuple[Daemon, Daemon]:
    """Hand over both ways, by an orderly end and by a death; return the two members that are left."""
    first = group.start("theirs-1", other=True)
    group.wait_shared(first, 1)
    second = group.start("ours-1", other=False)
    group.wait_shared(second, 2)
    assert [ADDED in one for one in group.registry.members(group.name).values()].count(True) == 1
    assert first.terminate() == 0, first.log()[-3000:]
    group.wait_shared(second, 1)
    third = group.start("theirs-2", other=True)
    group.wait_shared(third, 2)
    second.kill()
    group.wait_shared(third, 1)
    fourth = group.start("ours-2", other=False)
    group.wait_shared(fourth, 2)
    return fourth, third


@pytest.mark.timeout(150)
def test_a_chain_of_format_1_goes_on_after_an_upgrade_in_place(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Each record lands once; audit and doctor accept the chain of both formats; the older version refuses it."""
    try:
        older = make_format_1_version(tmp_path / "older")
    except LookupError as error:
        if os.environ.get("CONSUMERD_REQUIRE_TOOLS"):
            pytest.fail(str(error))
        pytest.skip(f"{error}: it takes a clone with its whole history (git fetch --unshallow)")
    cluster, name = shared_clusters(release), unique("upgraded")
    cluster.create_topic(name, PARTITIONS)
    producer = cluster.ledger_producer(linger_ms="5")
    settings = settings_for(
        cluster.zookeeper, name, topics=(name,),
        sink={"type": "parquet", "path": str(tmp_path / "landing"), "roll_ms": 400},
        offsets={"commit_interval_ms": 300}, log={"level": "info"},
    )  # fmt: skip

    def start(member: str, *path: str) -> Daemon:
        return Daemon(tmp_path, member, settings, python_path=path)

    with open_registry(cluster.zookeeper) as registry:

        def landed(member: Daemon) -> None:
            before = registry.offsets(name, name)
            member.wait(
                lambda: all(
                    registry.offsets(name, name).get(one, 0) > before.get(one, 0) + 20 for one in range(PARTITIONS)
                ),
                "files of each partition are landed and committed",
            )

        with SteadyLoad(producer, {name: PARTITIONS}, per_second=PER_PARTITION):
            with start("older", older) as member:
                landed(member)
                assert member.terminate() == 0, member.log()[-3000:]
            with start("newer") as member:
                landed(member)
                assert member.terminate() == 0, member.log()[-3000:]
            with start("older-again", older) as member:
                member.wait(lambda: "format 2" in member.log(), "the older version refuses it")
        ledger = producer.finish()
        with start("newest") as member:
            wait_landed(tmp_path / "landing", ledger)
            ends = {partition: end for (_, partition), end in log_ends(ledger).items()}
            member.wait(lambda: registry.offsets(name, name) == ends, "everything is committed")
            assert member.terminate() == 0, member.log()[-3000:]
            config = str(tmp_path / "newest.yaml")
            for command in (["consumerd.spark", "audit"], ["consumerd", "doctor"]):
                words = [sys.executable, "-m", *command, "--config", config]
                done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
                assert done.returncode == 0, done.stdout + done.stderr

    assert find_faults(tmp_path / "landing", ledger) == []
    landing = read_landing(tmp_path / "landing")
    assert landing.problems == []
    for found in landing.partitions.values():
        (chain,) = found.chains
        assert {file.metadata["format"] for file in chain.files} == {1, 2}, FORMAT_1_COMMIT
