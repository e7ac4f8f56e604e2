# SPDX-License-Identifier: Apache-2.0
"""A group whose cluster leaves ZooKeeper: it lands through ZooKeeper, and then through brokers alone.

The cluster itself stays as it is: brokers of 2.8 and later name the same cluster id and topic ids before and after.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.daemon import Daemon
from tests.support.landing_job import LandingJob
from tests.support.landing_reader import read_landing

KAFKA: Final[Mapping[str, Mapping[str, Any]]] = {
    "group": {"membership": "kafka", "session_timeout_ms": 6000},
    "offsets": {"storage": "kafka", "dual_commit": False, "commit_interval_ms": 200},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A landing job that is run with ZooKeeper first."""

    job: LandingJob
    bootstrap: str

    def with_zookeeper(self) -> Daemon:
        """Start a member that has ZooKeeper's address."""
        return self.job.daemon("before", **KAFKA)

    def without_zookeeper(self, name: str, identities: Path | None = None) -> Daemon:
        """Start a member that has the brokers' addresses, and the record if there is one."""
        cluster = {"zookeeper": None, "bootstrap": self.bootstrap}
        if identities is not None:
            cluster["identities"] = str(identities)
        return self.job.daemon(name, cluster=cluster, **KAFKA)

    def record(self, *options: str) -> Path:
        """Run ``consumerd identities``; return its file."""
        file = self.job.folder / "identities.json"
        run("identities", "-z", self.job.zookeeper, "-o", str(file), *options)
        return file

    def chains(self, topic: str) -> list[list[tuple[str, int]]]:
        """Return the incarnation and origin of each chain, of each partition."""
        landing = read_landing(self.job.landing(topic))
        assert landing.problems == []
        return [
            [(str(chain.record["incarnation"]), int(chain.record["origin"])) for chain in one.chains]
            for _, one in sorted(landing.partitions.items(), key=str)
            if one.topic == topic
        ]


def run(*arguments: str, code: int = 0) -> str:
    """Run a command of consumerd; return its output.

    That is its stderr if it is to fail, which ``code`` says.
    """
    done = subprocess.run(
        [sys.executable, "-m", "consumerd", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr
