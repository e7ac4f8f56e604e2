# SPDX-License-Identifier: Apache-2.0
"""Text of a commit to Kafka: the position's topic, and truncations of its log. Pure.

Kafka keeps up to 4096 characters beside a position (``offset.metadata.max.bytes``). Ours are at most 200::

    consumerd czxid=4294967337 id=6f0c9a1e
    consumerd topic_id=a5g7j1tvSx-Ob3bjRwaYgQ truncation=2 id=6f0c9a1e
    consumerd topic_id=a5g7j1tvSx-Ob3bjRwaYgQ truncation=1 noted=1 id=6f0c9a1e
    consumerd topic_id=a5g7j1tvSx-Ob3bjRwaYgQ lost=1:80:0:60:1 id=6f0c9a1e
    consumerd topic_id=a5g7j1tvSx-Ob3bjRwaYgQ set=3b9ad00f id=6f0c9a1e

``truncation`` and what follows it are written in a cluster without ZooKeeper only, where nothing else keeps them:

==============  ====================================================================================================
truncation      number of unclean leader elections that had cut the log; the position is valid after the last of them
noted           the position was set by that truncation, and delivery has not begun there yet
lost            the truncation that stops the partition (:class:`~consumerd.offsets.store.LostEnd`): its number, the
                position, the log's earliest and latest offset, and 1 if it makes this position void
set             id of the operator's command that has set the position, until a member has gone on there: sinks with
                files then begin a new chain below the end of what they have landed
id              hexadecimal digits, others in each request, which tell two commits of one offset apart
==============  ====================================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from consumerd.model import Incarnation
from consumerd.offsets.store import NO_MARK, LostEnd

_TEXT: Final = re.compile(
    r"consumerd (?:czxid=(?P<czxid>[0-9]{1,19})|topic_id=(?P<topic_id>[\w-]{1,40}))"
    r"(?: truncation=(?P<truncation>[0-9]{1,9}))?(?P<noted> noted=1)?"
    r"(?: lost=(?P<lost>[0-9]{1,9}(?::[0-9]{1,19}){3}):(?P<void>[01]))?"
    r"(?: set=(?P<set>[0-9a-f]{1,32}))? id=[0-9a-f]+",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """Content of the text.

    Attributes:
        incarnation: The topic, with the number of truncations.
        noted: True if the position was set by the last truncation, and delivery has not begun there yet.
        lost_end: The truncation that stops the partition; its ``voids`` is not set.
        voids: True if that truncation makes the position void.
        request_id: Id of the operator's command that has set the position; empty without one.
    """

    incarnation: Incarnation
    noted: bool = False
    lost_end: LostEnd | None = None
    voids: bool = False
    request_id: str = ""

    def encode(self, commit_id: str) -> str:
        """Return the text.

        Args:
            commit_id: Hexadecimal digits, others in each commit.
        """
        topic = self.incarnation
        words = [f"topic_id={topic.topic_id}" if topic.topic_id else f"czxid={topic.czxid}"]
        if topic.truncation:
            words.append(f"truncation={topic.truncation}")
        if self.noted:
            words.append("noted=1")
        if (lost := self.lost_end) is not None:
            words.append(f"lost={lost.number}:{lost.position}:{lost.earliest}:{lost.latest}:{int(self.voids)}")
        if self.request_id:
            words.append(f"set={self.request_id}")
        return " ".join(["consumerd", *words, f"id={commit_id}"])


def format_metadata(incarnation: Incarnation, commit_id: str) -> str:
    """Return the text that tells the position's topic, and the number of truncations."""
    return CommitMetadata(incarnation=incarnation).encode(commit_id)


def parse_metadata(text: str) -> CommitMetadata | None:
    """Parse the text of a commit; None if another client wrote it."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    topic = Incarnation(int(found["czxid"] or 0), topic_id=found["topic_id"] or "")
    lost = None
    if found["lost"] is not None:
        number, position, earliest, latest = map(int, found["lost"].split(":"))
        lost = LostEnd(number=number, position=position, earliest=earliest, latest=latest, voids=NO_MARK)
    return CommitMetadata(
        incarnation=topic.truncated(int(found["truncation"] or 0)),
        noted=found["noted"] is not None,
        lost_end=lost,
        voids=found["void"] == "1",
        request_id=found["set"] or "",
    )
