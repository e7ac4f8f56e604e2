# SPDX-License-Identifier: Apache-2.0
"""The Java clients and tools of a release on a cluster that somebody else runs: the embedded one."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.kafka import Cluster


@dataclass
class JavaTools(Cluster):
    """What ``kafka.Cluster`` starts and runs, but for the servers; their addresses are given."""

    zookeeper_address: str = ""
    bootstrap_address: str = ""

    @property
    def zookeeper(self) -> str:
        """The connect string that was given."""
        return self.zookeeper_address

    @property
    def bootstrap(self) -> str:
        """The broker list that was given."""
        return self.bootstrap_address

    def __enter__(self) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix="consumerd-java-"))
        return self

    def topics(self, *args: str) -> str:
        """Run ``kafka-topics`` and return what it says."""
        return self.run_tool("kafka.admin.TopicCommand", "--zookeeper", self.zookeeper, *args, brisk=True)
