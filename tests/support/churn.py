# SPDX-License-Identifier: Apache-2.0
"""Members of a group that are started, stopped and killed by dice."""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.support.daemon import Daemon, settings_for
from tests.support.waiting import wait_until


class Members:
    """Daemons of a group that come, leave and die. All land in one shared folder, ``landed`` below ``folder``.

    Args:
        zookeeper: connect string, chroot included.
        sink: type of the sink: ``parquet`` or ``jsonl``.
    """

    def __init__(self, zookeeper: str, group: str, topic: str, folder: Path, sink: str) -> None:
        options = {"type": sink, "path": str(folder / "landed"), "roll_ms": 700, "roll_bytes": 200_000}
        self._settings = settings_for(
            zookeeper,
            group,
            topics=(topic,),
            sink=options,
            log={"level": "info"},
            group={"session_timeout_ms": 4000},
        )
        self._folder = folder
        self._count = 0
        self.running: list[Daemon] = []
        self.killed = self.stopped = 0

    def start(self) -> None:
        """Start one more."""
        self._count += 1
        self.running.append(Daemon(self._folder, f"member-{self._count}", self._settings))

    def churn(self, dice: random.Random, seconds: float) -> None:
        """Start, stop or kill one every few seconds, and leave at least one running.

        Goes on until the time is over, and at least one in 20 s was killed and one stopped.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until or min(self.killed, self.stopped) < seconds // 20:
            self.change(dice)
            pause = time.monotonic() + dice.uniform(1.5, 4.0)
            wait_until(lambda pause=pause: time.monotonic() > pause, "the next change", 10)  # type: ignore[misc]
        if not self.running:
            self.start()

    def change(self, dice: random.Random) -> None:
        """Start, stop or kill one."""
        if len(self.running) < 2 or (len(self.running) < 4 and dice.random() < 0.4):
            self.start()
            return
        member = self.running.pop(dice.randrange(len(self.running)))
        if dice.random() < 0.5:
            self.killed += 1
            member.kill()
        else:
            self.stopped += 1
            began = bool(
                member.events("http_started")
            )  # before that, a signal finds no handler yet, and nothing to drain
            assert member.terminate() == 0 or not began, member.log()[-3000:]

    def close(self) -> None:
        """Stop what runs."""
        for member in self.running:
            member.terminate()
