# SPDX-License-Identifier: Apache-2.0
"""The stream that the demo produces: a shop's orders and clicks, sent by four services.

Customers and visitors are drawn by Zipf's law, so some keys, and with them some partitions, get far more records than
others. One order in a hundred is a tombstone (a customer who asked to be forgotten), and one click in twenty-five has
no key (a visitor without a cookie). Each service uses its own compression codec. For Kafka 0.7, which has neither
tombstones nor lz4, the stream has none.

Every value contains the record's number, so no two are alike. Pure; randomness is passed in.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

ORDERS: Final = "orders"
CLICKS: Final = "clicks"
TOPICS: Final = (ORDERS, CLICKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service of the demo's shop that produces events.

    ``weight`` is its share of the events relative to other services; ``codec`` is the compression codec of its
    producer.
    """

    name: str
    weight: int
    codec: str


SERVICES: Final = (
    Service(name="web", weight=5, codec="lz4"),
    Service(name="app", weight=3, codec="snappy"),
    Service(name="partners", weight=1, codec="gzip"),
    Service(name="tills", weight=1, codec="none"),
)

LEGACY_SERVICES: Final = tuple(
    replace(service, codec="gzip") if service.codec == "lz4" else service for service in SERVICES
)
"""The services with codecs that Kafka 0.7 knows."""

_CUSTOMERS: Final = 2000
_VISITORS: Final = 5000
_ARTICLES: Final = 400
STEP_MS: Final = 5
"""Time between the timestamps of two events, in milliseconds."""
_ORDERS_PER_CENT: Final = 40
_TOMBSTONES_PER_CENT: Final = 1
_WITHOUT_COOKIE_PER_CENT: Final = 4
_PAGES: Final = ("/", "/search", "/basket", "/checkout", "/help")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One record to be produced; ``timestamp_ms`` is in ms since the Unix epoch.

    A ``value`` of None is a tombstone.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    service: Service


def make_stream(
    random: Random,
    *,
    count: int,
    start_ms: int,
    services: Sequence[Service] = SERVICES,
    tombstones: bool = True,
) -> Iterator[Event]:
    """Yield ``count`` events of the demo, 5 ms apart.

    Args:
        random: Source of randomness; the same seed gives the same events.
        start_ms: Timestamp of the first event, in ms since the epoch.
        services: Services that send the events.
        tombstones: False to send an order in place of each tombstone.
    """
    customers, visitors, articles = _Popular(_CUSTOMERS), _Popular(_VISITORS), _Popular(_ARTICLES)
    weights = [service.weight for service in services]
    for number in range(count):
        timestamp_ms = start_ms + number * STEP_MS
        service = random.choices(services, weights)[0]
        key: bytes | None
        value: bytes | None
        if _chance(random, _ORDERS_PER_CENT):
            customer = customers.draw(random)
            topic, key = ORDERS, b"customer-%05d" % customer
            value = _order(random, number, timestamp_ms, service, customer, articles)
            if _chance(random, _TOMBSTONES_PER_CENT) and tombstones:
                value = None
        else:
            topic, key = CLICKS, b"visitor-%05d" % visitors.draw(random)
            value = _click(random, number, timestamp_ms, service, articles)
            if _chance(random, _WITHOUT_COOKIE_PER_CENT):
                key = None
        yield Event(topic=topic, key=key, value=value, timestamp_ms=timestamp_ms, service=service)


class _Popular:
    """Numbers from 1 to ``count``; n is drawn n times more rarely than 1."""

    def __init__(self, count: int) -> None:
        self._numbers: Sequence[int] = range(1, count + 1)
        self._cumulated = list(itertools.accumulate(1 / number for number in self._numbers))

    def draw(self, random: Random) -> int:
        return random.choices(self._numbers, cum_weights=self._cumulated)[0]


def _order(
    random: Random, number: int, timestamp_ms: int, service: Service, customer: int, articles: _Popular
) -> bytes:
    lines = [
        {"article": articles.draw(random), "quantity": random.randint(1, 3), "cents": random.randint(199, 19_999)}
        for _ in range(random.randint(1, 4))
    ]
    total = sum(line["quantity"] * line["cents"] for line in lines)
    return _encode(
        {
            "order": number,
            "customer": customer,
            "placed_ms": timestamp_ms,
            "channel": service.name,
            "lines": lines,
            "total_cents": total,
        }
    )


def _click(random: Random, number: int, timestamp_ms: int, service: Service, articles: _Popular) -> bytes:
    page = f"/article/{articles.draw(random)}" if _chance(random, 60) else random.choice(_PAGES)
    return _encode(
        {
            "click": number,
            "at_ms": timestamp_ms,
            "channel": service.name,
            "page": page,
            "from": random.choice(_PAGES),
            "took_ms": random.randint(8, 900),
        }
    )


def _encode(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _chance(random: Random, per_cent: int) -> bool:
    return random.random() * 100 < per_cent
