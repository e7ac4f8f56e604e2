# SPDX-License-Identifier: Apache-2.0
"""Authorization of requests, and the error codes of refused parts.

:func:`authorize` puts a check in front of each handler. Of a request about several topics or groups, the handler gets
those that are allowed; the others are refused, and both are answered together, in the order of the request.

Codes: 29 for a topic, 30 for a group, 31 for the cluster, 53 for a transactional id. Brokers of 0.10 answer code 3 for
a topic that may not be described (seen on 0.10.2.2; 1.1.1 answers 29, also for one that does not exist). Metadata of
all topics leaves out those that may not be described.

Sources: ``KafkaApis.scala`` of 1.1 for the operations; answers of 0.10.2.2 and 1.1.1 with ``SimpleAclAuthorizer``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from consumerd.embedded.acls import CLUSTER_NAME, Allows
from consumerd.embedded.handlers.context import Handler, RequestContext
from consumerd.embedded.handlers.refusals import refuse
from consumerd.embedded.reply import FileResponse
from consumerd.net.versions import Release
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern import find_coordinator
from consumerd.wire.modern.fetch import FetchRequest
from consumerd.wire.modern.metadata import MetadataTopic
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest

_FIRST_TO_TELL_DENIED_TOPICS: Final = (1, 0)
_FIRST_OFFSET_FETCH_WITH_ERROR: Final = 2

_TOPICS: Final[Mapping[ApiKey, str]] = {
    ApiKey.PRODUCE: "Write",
    ApiKey.FETCH: "Read",
    ApiKey.LIST_OFFSETS: "Describe",
    ApiKey.OFFSET_COMMIT: "Read",
    ApiKey.OFFSET_FETCH: "Describe",
    ApiKey.ADD_PARTITIONS_TO_TXN: "Write",
    ApiKey.TXN_OFFSET_COMMIT: "Read",
}
"""Operation on each topic of a request."""
_GROUP: Final[Mapping[ApiKey, str]] = {
    ApiKey.JOIN_GROUP: "Read",
    ApiKey.SYNC_GROUP: "Read",
    ApiKey.HEARTBEAT: "Read",
    ApiKey.LEAVE_GROUP: "Read",
    ApiKey.OFFSET_COMMIT: "Read",
    ApiKey.OFFSET_FETCH: "Describe",
    ApiKey.ADD_OFFSETS_TO_TXN: "Read",
    ApiKey.TXN_OFFSET_COMMIT: "Read",
}
"""Operation on the group of a request."""
_CLUSTER: Final[Mapping[ApiKey, str]] = {
    ApiKey.LIST_GROUPS: "Describe",
    ApiKey.CREATE_TOPICS: "Create",
    ApiKey.CREATE_PARTITIONS: "Alter",
    ApiKey.DESCRIBE_CONFIGS: "DescribeConfigs",
}
"""Operation on the cluster. In Kafka, CreatePartitions and DescribeConfigs take rights on topics."""
_TRANSACTIONAL: Final = frozenset(
    {ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT}
)


def authorize(handlers: Mapping[ApiKey, Handler], allows: Allows, release: Release) -> Mapping[ApiKey, Handler]:
    """Return the handlers with a check in front of each.

    Args:
        allows: Returns True if a principal may do an operation on a resource.
        release: Release that the broker imitates; it decides the code for topics that may not be described.
    """
    authorizer = _Authorizer(allows, tells_denied=release >= _FIRST_TO_TELL_DENIED_TOPICS)
    return {api: partial(authorizer.handle, api, handler) for api, handler in handlers.items()}


@dataclass(frozen=True, slots=True)
class _Authorizer:
    allows: Allows
    tells_denied: bool

    async def handle(self, api: ApiKey, handler: Handler, request: Any, context: RequestContext) -> object:
        """Answer a request, as far as the context's principal may ask it."""
        if (code := self._find_whole(api, request, context.principal)) is not None:
            refused = refuse(request, code, context.version)
            if api is ApiKey.OFFSET_FETCH and context.version >= _FIRST_OFFSET_FETCH_WITH_ERROR:
                refused = replace(refused, error_code=code)  # type: ignore[type-var]  # a response is a dataclass
            return refused
        if api is ApiKey.METADATA:
            return await self._describe_topics(handler, request, context)
        if api is ApiKey.DESCRIBE_GROUPS:
            return await self._describe_groups(handler, request, context)
        if (operation := _TOPICS.get(api)) is not None:
            return await self._handle_topics(handler, request, context, operation)
        return await handler(request, context)

    def _find_whole(self, api: ApiKey, request: Any, principal: str) -> ErrorCode | None:
        """Return the code that refuses the whole request; None if none does."""
        if (operation := _CLUSTER.get(api)) is not None and not self.allows(
            principal, operation, "Cluster", CLUSTER_NAME
        ):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if (operation := _GROUP.get(api)) is not None and not self.allows(
            principal, operation, "Group", request.group_id
        ):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        if api is ApiKey.FIND_COORDINATOR:
            return self._find_coordinated(request, principal)
        if api is ApiKey.INIT_PRODUCER_ID and request.transactional_id is None:
            allowed = self.allows(principal, "IdempotentWrite", "Cluster", CLUSTER_NAME)
            return None if allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if api in _TRANSACTIONAL or api is ApiKey.INIT_PRODUCER_ID:
            allowed = self.allows(principal, "Write", "TransactionalId", request.transactional_id)
            return None if allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return None

    def _find_coordinated(self, request: Any, principal: str) -> ErrorCode | None:
        if request.key_type == find_coordinator.GROUP:
            kind, code = "Group", ErrorCode.GROUP_AUTHORIZATION_FAILED
        else:
            kind, code = "TransactionalId", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return None if self.allows(principal, "Describe", kind, request.key) else code

    def _find_topic(self, topic: str, operation: str, principal: str) -> ErrorCode | None:
        """Return the code that refuses a topic; None if it is allowed."""
        if self.allows(principal, operation, "Topic", topic):
            return None
        if self.tells_denied or self.allows(principal, "Describe", "Topic", topic):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def _describe_topics(self, handler: Handler, request: Any, context: RequestContext) -> object:
        principal = context.principal
        if request.topics is None:
            response: Any = await handler(request, context)
            seen = (one for one in response.topics if self._find_topic(one.topic, "Describe", principal) is None)
            return replace(response, topics=tuple(seen))
        codes = {topic: self._find_topic(topic, "Describe", principal) for topic in request.topics}
        allowed = tuple(topic for topic, code in codes.items() if code is None)
        response = await handler(replace(request, topics=allowed), context)
        refused = [
            MetadataTopic(error_code=code, topic=topic, partitions=())
            for topic, code in codes.items()
            if code is not None
        ]
        return replace(response, topics=_in_order((*response.topics, *refused), request.topics))

    async def _describe_groups(self, handler: Handler, request: Any, context: RequestContext) -> object:
        allowed = tuple(group for group in request.groups if self.allows(context.principal, "Describe", "Group", group))
        refused = tuple(group for group in request.groups if group not in allowed)
        response: Any = await handler(replace(request, groups=allowed), context)
        if refused:
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            other: Any = refuse(replace(request, groups=refused), code, context.version)
            response = replace(response, groups=(*response.groups, *other.groups))
        return response

    async def _handle_topics(self, handler: Handler, request: Any, context: RequestContext, operation: str) -> object:
        if isinstance(request, OffsetFetchRequest) and request.topics is None:
            kept: Any = await handler(request, context)
            seen = (one for one in kept.topics if self._find_topic(one.topic, operation, context.principal) is None)
            return replace(kept, topics=tuple(seen))
        codes = {one.topic: self._find_topic(one.topic, operation, context.principal) for one in request.topics}
        if not any(codes.values()):
            return await handler(request, context)
        allowed = replace(request, topics=tuple(one for one in request.topics if codes[one.topic] is None))
        if isinstance(allowed, FetchRequest):
            allowed = replace(allowed, max_wait_ms=0)  # a partition with an error is answered at once
        answer: Any = await handler(allowed, context)
        response: Any = answer.response if isinstance(answer, FileResponse) else answer
        parts = list(response.topics)
        for code in {code for code in codes.values() if code is not None}:
            denied = replace(request, topics=tuple(one for one in request.topics if codes[one.topic] is code))
            refused: Any = refuse(denied, code, context.version)
            parts += refused.topics
        response = replace(response, topics=_in_order(parts, [one.topic for one in request.topics]))
        return replace(answer, response=response) if isinstance(answer, FileResponse) else response


def _in_order(parts: Iterable[Any], topics: Iterable[str]) -> tuple[Any, ...]:
    """Return the parts of a response in the order of the request's topics."""
    places = {topic: place for place, topic in reversed(list(enumerate(topics)))}
    return tuple(sorted(parts, key=lambda one: places.get(one.topic, len(places))))
