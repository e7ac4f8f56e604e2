# SPDX-License-Identifier: Apache-2.0
"""The handlers of requests that are answered from the logs alone.

``coordinator.handlers`` has those of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from consumerd.embedded.appending import Appender
from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.handlers.context import Handler
from consumerd.embedded.handlers.fetch import FetchHandler
from consumerd.embedded.handlers.list_offsets import ListOffsetsHandler
from consumerd.embedded.handlers.metadata import MetadataHandler
from consumerd.embedded.handlers.produce import ProduceHandler
from consumerd.embedded.long_polls import LongPolls
from consumerd.embedded.topics import Topics
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.metadata import MetadataBroker


def log_handlers(
    topics: Topics,
    appender: Appender,
    faults: BrokerFaults,
    *,
    broker: Callable[[], MetadataBroker],
    cluster_id: Callable[[], str | None],
    partitions_of_new: int,
) -> Mapping[ApiKey, Handler]:
    """Return the handlers, with long polls subscribed to all events that may end them.

    ``broker``, ``cluster_id`` and ``partitions_of_new`` are those of ``MetadataHandler``.
    """
    polls = LongPolls()
    appender.subscribe(polls.grown)
    faults.subscribe(polls.disturb)
    topics.subscribe(polls.disturb_topics)
    return {
        ApiKey.METADATA: MetadataHandler(
            topics, faults, broker=broker, cluster_id=cluster_id, partitions_of_new=partitions_of_new
        ),
        ApiKey.PRODUCE: ProduceHandler(topics, appender, faults),
        ApiKey.FETCH: FetchHandler(topics, polls, faults),
        ApiKey.LIST_OFFSETS: ListOffsetsHandler(topics, faults),
    }
