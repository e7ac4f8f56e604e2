# SPDX-License-Identifier: Apache-2.0
"""Roll-outs of the shipped workloads, with real processes as their pods, beside a partition that is stopped."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedThread
from tests.support.landing_check import Place
from tests.support.landing_job import LandingJob
from tests.support.landing_reader import read_landing
from tests.support.ledger import Ledger
from tests.support.load import SteadyLoad
from tests.support.registry import open_registry
from tests.support.roll_out import Deployment, RollingUpdate, StatefulSet
from tests.support.waiting import wait_until

pytestmark = pytest.mark.records

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "base" / "deployment.yaml"
PARTITIONS = 3
STOPPED = 0


def wait_told(pods: Mapping[str, Daemon], partition: str) -> None:
    """Wait until the probe of the pod that has the partition says that it is stopped: starts come a moment after claims."""
    wait_until(
        lambda: sum(f"{partition} is stopped: " in pod.get("/readyz")[1] for pod in pods.values()) == 1,
        f"{partition} is told to be stopped",
    )


@pytest.mark.timeout(240)
def test_a_roll_out_completes_beside_a_stopped_partition_and_loses_nothing(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Readiness is membership: which pod has the stopped partition must not decide whether the next one may go."""
    job = LandingJob.make(cluster, unique("rollout"), tmp_path, partitions=PARTITIONS)
    node = f"/consumers/{job.group}/offsets/{job.jsonl}/{STOPPED}"
    producer = Ledger(cluster.bootstrap)
    with open_registry(cluster.zookeeper) as registry, contextlib.ExitStack() as running:
        registry.client.create(node, b"three", makepath=True)
        deployment = Deployment(
            RollingUpdate.of(yaml.safe_load(MANIFEST.read_text())),
            lambda name: running.enter_context(job.daemon(name)),
        )
        deployment.roll_out(progress_deadline_s=40)
        load = dict.fromkeys(job.topics, PARTITIONS)
        with SteadyLoad(producer, load, per_second=20):
            deployment.roll_out(progress_deadline_s=40)
            wait_told(deployment.pods, f"{job.jsonl}/{STOPPED}")
            states = {
                (one["topic"], int(one["partition"])): one["state"]
                for pod in deployment.pods.values()
                for one in pod.status()["partitions"]
            }
            told = [pod.get("/readyz") for pod in deployment.pods.values()]
            gauges = [pod.get("/metrics")[1] for pod in deployment.pods.values()]
        untouched = registry.client.get(node)[0]
        registry.client.set(node, b"0")  # what `consumerd offsets set` writes
        ledger = producer.finish()
        job.wait_landed(ledger)
        deployment.exit_codes += [pod.terminate() for pod in deployment.pods.values()]

    assert {partition for partition, state in states.items() if state == "stopped"} == {(job.jsonl, STOPPED)}
    assert untouched == b"three", "no member has passed the stop"
    assert {code for code, _ in told} == {200}
    (one,) = [text for _, text in told if text != "ok\n"]
    assert f"{job.jsonl}/{STOPPED} is stopped" in one
    assert sum("consumerd_stopped_partitions 1.0" in text for text in gauges) == 1, "an alert sees it"
    assert deployment.exit_codes == [0] * 2 * deployment.update.replicas
    assert job.find_faults(ledger) == []


@pytest.mark.timeout(240)
def test_replicas_with_volumes_of_their_own_roll_out_beside_a_stopped_partition(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """A StatefulSet with `shared: false`: partitions move between volumes, and each record is on one of them, once."""
    topic = unique("ordinals")
    cluster.create_topic(topic, PARTITIONS)
    node = f"/consumers/{topic}/offsets/{topic}/{STOPPED}"
    update = RollingUpdate.of(yaml.safe_load(MANIFEST.read_text()))
    producer = Ledger(cluster.bootstrap)

    def landed() -> Counter[Place]:
        return Counter(
            (one.topic, int(one.partition), record.offset)
            for volume in tmp_path.glob("volume-*")
            for one in read_landing(volume).partitions.values()
            for record in one.records
        )

    with open_registry(cluster.zookeeper) as registry, contextlib.ExitStack() as running:

        def start(name: str, revision: int) -> Daemon:
            volume = {"path": str(tmp_path / f"volume-{name}"), "shared": False}
            settings = settings_for(
                cluster.zookeeper, topic, topics=(topic,), sink={"type": "jsonl", "roll_ms": 300, **volume},
                group={"session_timeout_ms": 3000, "consumer_id": name}, offsets={"commit_interval_ms": 200},
            )  # fmt: skip
            return running.enter_context(Daemon(tmp_path, f"{name}-{revision}", settings))

        registry.client.create(node, b"three", makepath=True)
        workload = StatefulSet(2, update.readiness_path, start)
        workload.roll_out(progress_deadline_s=40)
        with SteadyLoad(producer, {topic: PARTITIONS}, per_second=20):
            workload.roll_out(progress_deadline_s=40)
            wait_told(workload.pods, f"{topic}/{STOPPED}")
            told = [pod.get("/readyz")[1] for pod in workload.pods.values()]
        registry.client.set(node, b"0")
        ledger = producer.finish()
        wait_until(lambda: landed().keys() >= ledger.keys(), "everything landed", 40, 0.3)
        workload.exit_codes += [pod.terminate() for pod in workload.pods.values()]

    assert [text.splitlines()[0] for text in told] == ["ok", "ok"]
    assert workload.exit_codes == [0] * 4
    assert landed() == Counter(ledger.keys()), "lost, or landed twice"
    assert [problem for one in tmp_path.glob("volume-*") for problem in read_landing(one).problems] == []
