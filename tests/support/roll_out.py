# SPDX-License-Identifier: Apache-2.0
"""Controllers of Kubernetes, simulated: they replace pods by the manifest's strategy, as far as readiness allows.

A pod is a real process.

Deployment and ReplicaSet: old pods that are not ready are removed first; others only while `replicas - maxUnavailable` pods
stay ready; a new pod is started as soon as there are fewer than `replicas + maxSurge`. A new pod that never becomes ready
therefore blocks the roll-out, and counts as failed after the progress deadline.

StatefulSet: pods have names with ordinals, which their successors take over. One is replaced after the other, from the highest
ordinal to 0, and each is ready before the next one leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tests.support.daemon import Daemon

_POLL_S = 0.1


class ProgressDeadlineExceeded(Exception):
    """The roll-out stood still: says which pods are there, and what their readiness probes answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingUpdate:
    """What a Deployment's manifest says of its roll-outs."""

    replicas: int
    max_surge: int
    max_unavailable: int
    readiness_path: str

    @classmethod
    def of(cls, deployment: Mapping[str, Any]) -> Self:
        """Read it from a Deployment with one container; the numbers are whole, not percentages."""
        strategy = deployment["spec"]["strategy"]
        assert strategy["type"] == "RollingUpdate"
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        return cls(
            replicas=deployment["spec"]["replicas"],
            max_surge=int(strategy["rollingUpdate"]["maxSurge"]),
            max_unavailable=int(strategy["rollingUpdate"]["maxUnavailable"]),
            readiness_path=container["readinessProbe"]["httpGet"]["path"],
        )


@dataclass(slots=True)
class Deployment:
    """Pods of one Deployment. ``start`` starts the process of a pod with the given name."""

    update: RollingUpdate
    start: Callable[[str], Daemon]
    pods: dict[str, Daemon] = field(default_factory=dict)
    revision: int = 0
    exit_codes: list[int] = field(default_factory=list)
    _made: int = 0

    def roll_out(self, *, progress_deadline_s: float) -> None:
        """Replace every pod; the first call starts them. Raises ProgressDeadlineExceeded."""
        self.revision += 1
        deadline = time.monotonic() + progress_deadline_s
        while not self._is_complete():
            if self._step():
                deadline = time.monotonic() + progress_deadline_s
            elif time.monotonic() > deadline:
                answers = {name: pod.get(self.update.readiness_path) for name, pod in self.pods.items()}
                raise ProgressDeadlineExceeded(f"revision {self.revision}: {answers}")
            else:
                time.sleep(_POLL_S)

    def _is_ready(self, name: str) -> bool:
        return self.pods[name].get(self.update.readiness_path)[0] == 200

    def _is_new(self, name: str) -> bool:
        return name.startswith(self._prefix)

    @property
    def _prefix(self) -> str:
        return f"revision-{self.revision}-"

    def _is_complete(self) -> bool:
        return len(self.pods) == self.update.replicas and all(
            self._is_new(name) and self._is_ready(name) for name in self.pods
        )

    def _step(self) -> bool:
        """Start or remove one pod, if the rules allow it; say whether they did."""
        new = [name for name in self.pods if self._is_new(name)]
        if len(new) < self.update.replicas and len(self.pods) < self.update.replicas + self.update.max_surge:
            self._made += 1
            name = f"{self._prefix}{self._made}"
            self.pods[name] = self.start(name)
            return True
        ready = {name for name in self.pods if self._is_ready(name)}
        old = [name for name in self.pods if name not in new]
        fewest = self.update.replicas - self.update.max_unavailable
        unready_new = sum(name not in ready for name in new)
        # Both controllers bound all removals by this; old pods that are not ready cost no availability.
        if len(self.pods) - fewest - unready_new <= 0:
            return False
        for name in sorted(old, key=lambda one: one in ready):
            if name not in ready or len(ready) > fewest:
                self.exit_codes.append(self.pods[name].terminate())
                del self.pods[name]
                return True
        return False


@dataclass(slots=True)
class StatefulSet:
    """Pods of one StatefulSet with `podManagementPolicy: Parallel`. ``start`` starts a pod of a name and a revision."""

    replicas: int
    readiness_path: str
    start: Callable[[str, int], Daemon]
    pods: dict[str, Daemon] = field(default_factory=dict)
    revision: int = 0
    exit_codes: list[int] = field(default_factory=list)

    def roll_out(self, *, progress_deadline_s: float) -> None:
        """Replace every pod; the first call starts them together. Raises DaemonFailed for one that is not ready in time."""
        self.revision += 1
        names = [f"consumerd-{ordinal}" for ordinal in reversed(range(self.replicas))]
        if not self.pods:
            self.pods = {name: self.start(name, self.revision) for name in names}
            for name in names:
                self._wait_ready(name, progress_deadline_s)
            return
        for name in names:
            self.exit_codes.append(self.pods[name].terminate())
            self.pods[name] = self.start(name, self.revision)
            self._wait_ready(name, progress_deadline_s)

    def _wait_ready(self, name: str, timeout_s: float) -> None:
        pod = self.pods[name]
        pod.wait(lambda: pod.get(self.readiness_path)[0] == 200, f"{name} is ready", timeout_s)
