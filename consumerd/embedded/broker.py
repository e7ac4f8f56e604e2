"""One broker in this process: how log, network, handlers, coordinator and registration are put together.

For the demo, for tests and for development: one node, no replication, no security. What it passes for is
``releases``'s, what it does wrong on request ``faults``'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from consumerd.embedded.faults import Faults
from consumerd.embedded.releases import Imitation, MessageFormat, get_imitation
from consumerd.embedded.topics import Topics

if TYPE_CHECKING:
    from consumerd.embedded.log.settings import LogSettings

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What a broker is told. Raises ConfigError, when made, for a release that cannot be imitated."""

    broker_id: int = 0
    host: str = "127.0.0.1"
    """Where it listens, and what it registers."""
    port: int = 0
    """0: a free one."""
    directory: Path
    """Where the partitions' directories are."""
    zookeeper: str
    """A connect string, with the chroot if there is one."""
    as_release: str = "1.1"
    message_format: MessageFormat | None = None
    """What the logs store; None: what the release does."""
    num_partitions: int = 1
    """Of topics that come into being because somebody asks for them."""
    auto_create_topics: bool = True
    log: LogSettings | None = None
    """None: the defaults. ``message_format`` in it is replaced by what holds here."""
    max_request_bytes: int = 100 * _MIB
    offsets_topic_partitions: int = 4
    """Of ``__consumer_offsets``: 50 in Kafka, which is many for one node with a laptop's disk."""
    session_timeout_ms: int = 6000
    """Of the broker's ZooKeeper session."""
    write_timeout_s: float = 30.0
    """A connection is closed whose peer has taken nothing of an answer for so long."""
    retention_check_interval_s: float = 30.0

    def __post_init__(self) -> None:
        get_imitation(self.as_release)

    @property
    def imitation(self) -> Imitation:
        """The release that it passes for."""
        return get_imitation(self.as_release)


class EmbeddedBroker:
    """A broker that serves from entering (``async with``) to leaving."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._faults = Faults()

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        raise NotImplementedError

    @property
    def port(self) -> int:
        """The port it listens on."""
        raise NotImplementedError

    @property
    def bootstrap(self) -> str:
        """What clients are given: ``host:port``."""
        return f"{self._settings.host}:{self.port}"

    @property
    def faults(self) -> Faults:
        """What it is to do wrong."""
        return self._faults

    @property
    def topics(self) -> Topics:
        """Its topics and their logs."""
        raise NotImplementedError

    async def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic and return when it is served; ``configs`` are Kafka's with ``_`` for ``.``.

        Raises InvalidTopic, InvalidPartitions, TopicExists, CoordinationError.
        """
        await self.topics.create(name, partitions, {key.replace("_", "."): value for key, value in configs.items()})
