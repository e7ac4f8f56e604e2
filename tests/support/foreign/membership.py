# SPDX-License-Identifier: Apache-2.0
"""The script's part on groups: join, share, commit, describe, leave, resume; and what is said of the group meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

from tests.support.foreign.client import PATIENCE_S, Answer, ForeignClient, Member, NotOffered
from tests.support.foreign.kafka_python import KafkaPython
from tests.support.waiting import wait_until

PARTITIONS: Final = 4
ROUND: Final = 200
"""Records of a round, of which the topic gets three."""


class Driven:
    """A member whose thread polls until it is told to stop; it commits when it is told to, and leaves in the end."""

    def __init__(self, make: Callable[[], Member]) -> None:
        self.numbers: list[int] = []
        self.assigned: set[int] = set()
        self._make = make
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._commits, self._committed = 0, 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            member = self._make()
            try:
                while not self._stop.is_set():
                    self.numbers += member.poll()
                    self.assigned = member.assigned()
                    if self._committed < self._commits:
                        member.commit()
                        self._committed += 1
            finally:
                member.close()
        except BaseException as failure:  # noqa: BLE001  # told to whoever waits
            self._failure = failure

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that this member does. Raises what the member failed with, and TimeoutError."""

        def done() -> bool:
            if self._failure is not None:
                raise self._failure
            return condition()

        wait_until(done, what, PATIENCE_S)

    def commit(self) -> None:
        """Have it commit, and wait until it has."""
        self._commits += 1
        self.wait(lambda: self._committed == self._commits, "the commit")

    def leave(self) -> None:
        """Have it leave, and wait until it has. Idempotent."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            raise TimeoutError("the member does not leave")
        if self._failure is not None:
            raise self._failure


class GroupStory:
    """One client's group on a topic of four partitions, told once; ``answers`` holds what each part came to."""

    def __init__(self, client: ForeignClient, reference: KafkaPython, topic: str) -> None:
        self.group = f"group-{client.name}"
        self.answers: dict[str, Answer] = {}
        self._client = client
        self._reference = reference
        self._topic = topic
        self._written = 0
        self._members: list[Driven] = []

    def tell(self) -> dict[str, Answer]:
        """Run it. Raises NotOffered if the client has no groups."""
        with self._leaving():
            self._write()
            one = self._join("one")
            self._read_all("one has read the first round")
            one.commit()
            two = self._join("two")
            two.wait(lambda: len(one.assigned) == len(two.assigned) == PARTITIONS // 2, "two share")
            shares = sorted([sorted(one.assigned), sorted(two.assigned)])
            self.answers["group described"] = self._or_none(self._describe)
            self.answers["groups listed"] = self._or_none(lambda: self.group in self._client.groups())
            self._write()
            self._read_all("both have read the second round")
            one.commit()
            two.commit()
            two.leave()
            one.wait(lambda: len(one.assigned) == PARTITIONS, "one has all partitions again")
            one.leave()
            before = self._positions()
            self.answers["group joined and shared"] = {
                "shares": shares,
                "read": len(one.numbers + two.numbers),
                "different": len(set(one.numbers + two.numbers)),
            }
            self.answers["empty group described"] = self._or_none(self._describe)
            first_unread = self._written
            self._write()
            three = self._join("three")
            three.wait(lambda: len(three.numbers) >= ROUND, "three has read the third round")
            three.commit()
            three.leave()
            after = self._positions()
            self.answers["group resumed where it had committed"] = {
                "before": before,
                "after": after,
                "read": sorted(three.numbers) == list(range(first_unread, self._written)),
            }
            self.answers["positions looked up"] = self._or_none(
                lambda: plain_positions(self._client.committed(self.group, self._topic, PARTITIONS))
            )
        return self.answers

    @contextlib.contextmanager
    def _leaving(self) -> Iterator[None]:
        """Have all members leave, however the block ends."""
        try:
            yield
        except BaseException:
            for member in self._members:
                with contextlib.suppress(Exception):
                    member.leave()
            raise

    def _join(self, name: str) -> Driven:
        # the group is the client's alone, and its client ids tell who is who
        member = Driven(lambda: self._client.join(self.group, self._topic, name))
        self._members.append(member)
        return member

    def _write(self) -> None:
        # a round goes evenly into the partitions
        numbers = range(self._written, self._written + ROUND)
        self._reference.write_values(self._topic, [b"%d" % number for number in numbers], PARTITIONS)
        self._written += ROUND

    def _read_all(self, what: str) -> None:
        for member in self._members:
            member.wait(lambda: len({n for one in self._members for n in one.numbers}) == self._written, what)

    def _positions(self) -> Answer:
        """Wait until all that was written is committed, and return the positions."""

        def committed() -> dict[int, int]:
            try:
                return self._client.committed(self.group, self._topic, PARTITIONS)
            except NotOffered:
                return self._reference.committed(self.group, self._topic, PARTITIONS)

        wait_until(lambda: sum(committed().values()) == self._written, "all is committed", PATIENCE_S)
        return plain_positions(committed())

    def _describe(self) -> Answer:
        return self._client.describe(self.group, self._topic)

    @staticmethod
    def _or_none(ask: Callable[[], Answer]) -> Answer:
        try:
            return ask()
        except NotOffered:
            return None


def plain_positions(positions: dict[int, int]) -> Answer:
    """Return positions as JSON has them."""
    return {str(partition): positions[partition] for partition in sorted(positions)}
