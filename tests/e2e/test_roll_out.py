"""A roll-out of the shipped Deployment, with real processes as its pods, beside a partition that is stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support.embedded import EmbeddedThread
from tests.support.landing_job import LandingJob
from tests.support.ledger import Ledger
from tests.support.load import SteadyLoad
from tests.support.registry import open_registry
from tests.support.roll_out import Deployment, RollingUpdate

pytestmark = pytest.mark.records

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "base" / "deployment.yaml"
PARTITIONS = 3
STOPPED = 0


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
