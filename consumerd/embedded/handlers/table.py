# SPDX-License-Identifier: Apache-2.0
"""The handlers of requests about topics and their logs: Metadata, Produce, Fetch and so on.

``coordinator.handlers`` has those of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from consumerd.embedded.appending import Appender
from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.handlers.context import Handler
from consumerd.embedded.handlers.fetch import FetchHandler
from consumerd.embedded.handlers.list_offsets import ListOffsetsHandler
from consumerd.embedded.handlers.metadata import MetadataHandler
from consumerd.embedded.handlers.produce import ProduceHandler
from consumerd.embedded.handlers.topic_administration import TopicAdministration
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.long_polls import LongPolls
from consumerd.embedded.nodes import Nodes
from consumerd.embedded.topics import Topics
from consumerd.model import BrokerId
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.metadata import MetadataBroker

_DEFAULTS: Final = LogSettings()


def log_handlers(
    topics: Topics,
    appender: Appender,
    faults: BrokerFaults,
    *,
    broker: MetadataBroker,
    nodes: Nodes | None = None,
    cluster_id: Callable[[], str | None],
    partitions_of_new: int,
    settings: LogSettings = _DEFAULTS,
    at_end: Callable[[Callable[[], None]], object] = lambda _: None,
) -> Mapping[ApiKey, Handler]:
    """Return the handlers of requests about topics and their logs, by API.

    The other arguments are those of the handlers, such as ``MetadataHandler``.

    Args:
        topics: The topics and their open logs.
        appender: Runs the appends.
        settings: The broker's defaults for topics.
        faults: Injected faults: partitions for which the broker pretends not to be the leader.
        at_end: Called with functions that must be called when the handlers are not used any more; the logs may be used
            longer.
    """
    polls = LongPolls()
    at_end(appender.subscribe(polls.grown))
    faults.subscribe(polls.disturb)
    at_end(topics.subscribe(polls.disturb_topics))
    administration = TopicAdministration(
        topics, nodes or Nodes((BrokerId(broker.node_id),)), settings, partitions_of_new=partitions_of_new
    )
    return {
        ApiKey.CREATE_TOPICS: administration.create_topics,
        ApiKey.CREATE_PARTITIONS: administration.create_partitions,
        ApiKey.DESCRIBE_CONFIGS: administration.describe_configs,
        ApiKey.METADATA: MetadataHandler(
            topics,
            faults,
            broker=broker,
            nodes=nodes,
            cluster_id=cluster_id,
            partitions_of_new=partitions_of_new,
        ),
        ApiKey.PRODUCE: ProduceHandler(topics, appender, faults),
        ApiKey.FETCH: FetchHandler(topics, polls, faults),
        ApiKey.LIST_OFFSETS: ListOffsetsHandler(topics, faults),
    }
