# SPDX-License-Identifier: Apache-2.0
"""Groups whose cluster leaves ZooKeeper.

With the cluster's recorded identities they go on in the same chains of files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest
import yaml
from pydantic import ValidationError

from consumerd.access.address import IdentitiesFile
from consumerd.config.cluster_section import ClusterSection
from consumerd.embedded import releases
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.embedded.releases import Imitation
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.coordinated_faults import acknowledged
from tests.support.documents import DOCS, find_blocks
from tests.support.embedded import EmbeddedThread
from tests.support.landing_job import LandingJob
from tests.support.leaving_zookeeper import Leaving, run

HERE: Final = "tests/e2e/test_leaving_zookeeper.py"

pytestmark = [pytest.mark.records, pytest.mark.timeout(300), pytest.mark.drawn]


@pytest.fixture
def cluster(zookeeper: EmbeddedZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedThread]:
    """A broker in ZooKeeper whose topics have ids, as those of 2.8.

    The embedded broker does not pass for 2.8, of which it answers some requests as 1.1 does; its ids are the same.
    """
    monkeypatch.setitem(cast("dict[str, Imitation]", releases.IMITATIONS), "2.8", releases.imitate("2.8", (2, 8), 2))
    address = f"{zookeeper.connect_string}/{tmp_path.name}"
    with EmbeddedThread(tmp_path / "cluster", address, as_release="2.8") as running:
        yield running


def produce(cluster: EmbeddedThread, job: LandingJob, first: int, last: int) -> None:
    for topic in job.topics:
        cluster.produce(topic, b"".join(b"k\t%d\n" % number for number in range(first, last)))


@pytest.fixture
def leaving(cluster: EmbeddedThread, tmp_path: Path) -> Leaving:
    """A group that has landed records 0 to 39 of each topic with ZooKeeper."""
    job = LandingJob.make(cluster, "lake", tmp_path, partitions=1)
    made = Leaving(job=job, bootstrap=cluster.bootstrap)
    produce(cluster, job, 0, 40)
    with made.with_zookeeper() as member:
        member.wait(lambda: acknowledged(member) == 80, "all has landed")
        assert 0 == member.terminate()
    return made


def values(leaving: Leaving, topic: str) -> list[int]:
    home = leaving.job.landing(topic) / f"topic={topic}" / "partition=0"
    files = sorted(home.glob("chain=*/*.jsonl"))
    return [int(json.loads(line)["value"]) for file in files for line in file.read_text().splitlines()]


def test_chains_go_on_with_the_recorded_identities(cluster: EmbeddedThread, leaving: Leaving) -> None:
    """Nothing lands twice and nothing is skipped; without the record the folder is refused."""
    job = leaving.job
    before = leaving.chains(job.jsonl)
    file = leaving.record()
    produce(cluster, job, 40, 100)
    with leaving.without_zookeeper("unnamed") as member:
        member.wait(lambda: member.process.poll() is not None, "it refuses the folder")
        refused = member.log()
    with leaving.without_zookeeper("after", file) as member:
        member.wait(lambda: acknowledged(member) == 200, "it goes on")
        assert 0 == member.terminate()

    assert "of cluster" in refused
    assert list(range(100)) == values(leaving, job.jsonl)
    assert before == leaving.chains(job.jsonl)
    assert [[(made, 0)] for ((made, _),) in before] == before
    assert before[0][0][0].isdigit()
    assert "100" in run(
        "offsets", "show", "--bootstrap", cluster.bootstrap, "-g", "lake", "--set", f"cluster.identities={file}"
    )


def test_documented_settings_are_those_of_such_a_member(tmp_path: Path) -> None:
    """The settings of the page are accepted.

    The file is refused beside ``cluster.zookeeper``.
    """
    (block,) = find_blocks(DOCS / "without-zookeeper.md", "yaml", HERE)
    file = tmp_path / "identities.json"
    section = yaml.safe_load(block.text.replace("/etc/consumerd/identities.json", str(file)))["cluster"]

    assert ClusterSection.model_validate(section).find_identities() == IdentitiesFile(
        setting="cluster.identities", file=file
    )
    with pytest.raises(ValidationError, match="identities is for a cluster without ZooKeeper"):
        ClusterSection.model_validate({"zookeeper": "zk1:2181", "identities": str(file)})


def test_recreated_topic_has_its_own_id(cluster: EmbeddedThread, leaving: Leaving) -> None:
    """A topic that was re-created since the record begins at its earliest offset.

    It has a chain of its own, beside that of the recorded topic.
    """
    job = leaving.job
    (((old, _),),) = leaving.chains(job.jsonl)
    file = leaving.record()

    async def recreate(inner: EmbeddedCluster) -> None:
        await inner.broker.topics.delete(job.jsonl)
        await inner.broker.create_topic(job.jsonl)

    cluster.do(recreate)
    cluster.produce(job.jsonl, b"".join(b"k\t%d\n" % number for number in range(60)))
    with leaving.without_zookeeper("after", file) as member:
        member.wait(lambda: acknowledged(member) == 100, "the new topic has landed")
        assert 0 == member.terminate()

    ((first, second),) = leaving.chains(job.jsonl)
    assert (old, 0) == first
    assert (22, 0) == (len(second[0]), second[1])
    assert [*range(40), *range(60)] == values(leaving, job.jsonl)


def test_record_of_another_cluster_is_refused(cluster: EmbeddedThread, leaving: Leaving) -> None:
    """Both names are told: of the file and of the cluster."""
    file = leaving.record()
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "cluster_id": "another"}))

    with leaving.without_zookeeper("after", file) as member:
        member.wait(lambda: member.process.poll() is not None, "it ends")
        refused = member.log()
    told = run(
        "offsets",
        "export",
        "--bootstrap",
        cluster.bootstrap,
        "-g",
        "lake",
        "--set",
        f"cluster.identities={file}",
        code=2,
    )

    for text in (refused, told):
        assert f"cluster.identities: {file}: it is a record of cluster another" in text
