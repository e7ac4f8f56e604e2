"""Faults on purpose: what a test, or somebody who tries a client, can make a broker do wrong.

A fault is armed for the next ``times`` requests of an API and then gone; :meth:`Faults.clear` takes back what is left.
Calls take effect for requests that are *answered* from then on, long polls that wait already among them.

::

    broker.faults.error(ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2)
    broker.faults.close_at(ApiKey.FETCH, 100)          # after 100 bytes of the next answer
    broker.faults.fill_disk()

The network ones act on the answer's frame, size prefix included, whatever is in it.
"""

from __future__ import annotations

from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode


class Fault:
    """A fault that was armed."""

    @property
    def hits(self) -> int:
        """How many requests it has met so far."""
        raise NotImplementedError

    def remove(self) -> None:
        """Take it back; nothing happens if it is over."""
        raise NotImplementedError


class Faults:
    """What one broker does wrong. Used on the broker's event loop."""

    def delay(self, api: ApiKey, seconds: float, *, times: int = 1) -> Fault:
        """Answer ``seconds`` later than it would; what the connection sends meanwhile waits."""
        raise NotImplementedError

    def close_at(self, api: ApiKey, byte: int, *, times: int = 1) -> Fault:
        """Send ``byte`` bytes of the answer's frame and close; 0: none."""
        raise NotImplementedError

    def wrong_correlation_id(self, api: ApiKey, *, times: int = 1) -> Fault:
        """Answer with the correlation id of another request."""
        raise NotImplementedError

    def error(self, api: ApiKey, code: ErrorCode, *, times: int = 1) -> Fault:
        """Do nothing of what is asked and answer ``code`` for all that it was asked for."""
        raise NotImplementedError

    def corrupt(self, api: ApiKey, byte: int = -1, *, times: int = 1) -> Fault:
        """Invert one byte of the answer's frame; -1 is the last one, which is a record's in an answer to Fetch."""
        raise NotImplementedError

    def oversize(self, api: ApiKey, size: int = 0x7FFF_FFFF, *, times: int = 1) -> Fault:
        """Say ``size`` in the frame's size prefix, and send what there is."""
        raise NotImplementedError

    def pretend_leader(self, partition: TopicPartition, leader: BrokerId) -> Fault:
        """Name another leader in Metadata, and answer NOT_LEADER_OR_FOLLOWER for the partition, until removed."""
        raise NotImplementedError

    def fill_disk(self) -> Fault:
        """Let every write to a log fail as on a full disk, until removed."""
        raise NotImplementedError

    def clear(self) -> None:
        """Take back everything."""
        raise NotImplementedError
