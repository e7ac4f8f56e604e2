# SPDX-License-Identifier: Apache-2.0
"""Checks of what programs pass to a producer, and texts of a closed one. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from consumerd.access.principal import Principal
from consumerd.client.accumulator import Batch
from consumerd.client.producer_hooks import Encoder, ProducerHooks, encode_nothing, encode_text
from consumerd.client.remedies import advise_right
from consumerd.errors import ProducerClosed
from consumerd.telemetry.wording import counted
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.record_fields import NO_TIMESTAMP, Headers

_MOST_TIMESTAMP_MS: Final = (1 << 62) - 1


def watches_enqueuing(hooks: ProducerHooks) -> bool:
    """Return True if the hooks are called before or after a record is buffered."""
    kind = type(hooks)
    return (
        kind.before_enqueue is not ProducerHooks.before_enqueue or kind.after_enqueue is not ProducerHooks.after_enqueue
    )


def checked_encoder(encoder: Encoder) -> Encoder:
    """Return an encoder that raises TypeError if this one does not return bytes."""
    if encoder in (encode_nothing, encode_text):
        return encoder

    def encode(data: object) -> bytes:
        encoded: object = encoder(data)
        if not isinstance(encoded, bytes):
            raise TypeError(f"expected the encoder to return bytes, got {type(encoded).__name__}")
        return encoded

    return encode


def check_timestamp(timestamp_ms: object) -> None:
    """Raise TypeError or ValueError for an invalid timestamp; NO_TIMESTAMP is valid."""
    if not isinstance(timestamp_ms, int):
        raise TypeError(f"timestamp_ms: expected an int, got {type(timestamp_ms).__name__}")
    if not NO_TIMESTAMP <= timestamp_ms <= _MOST_TIMESTAMP_MS:
        raise ValueError(f"timestamp_ms: expected milliseconds since the epoch, got {timestamp_ms}")


def checked_headers(headers: Iterable[tuple[object, object]]) -> Headers:
    """Return an immutable copy of the headers. Raises TypeError or ValueError if they are invalid."""
    found: list[tuple[str, bytes | None]] = []
    for name, value in headers:
        if not isinstance(name, str):
            raise TypeError(f"headers: expected names that are str, got {type(name).__name__}")
        if not (value is None or isinstance(value, bytes)):
            raise TypeError(f"header {name!r}: expected bytes or None, got {type(value).__name__}")
        name.encode()  # a lone surrogate raises here, instead of later when the batch is encoded
        found.append((name, value))
    return tuple(found)


def explain_giving_up(batch: Batch) -> ProducerClosed:
    """Return the error for a batch that is not acknowledged at the end of close()."""
    in_doubt = batch.may_be_written
    tried = f"tried {batch.attempts} times, they may have been written" if in_doubt else "they were not sent"
    return ProducerClosed(
        f"{batch.partition}: {counted(len(batch.to_send), 'record')} not acknowledged when the producer was closed; "
        f"{tried}. "
        "Give close() more time (close_timeout_s)",
        partition=batch.partition,
        in_doubt=in_doubt,
    )


def explain_closed(topic: str) -> ProducerClosed:
    """Return the error for a record that comes after close()."""
    return ProducerClosed(
        f"{topic}: the producer is closed and takes no more records; write before close(), or make another"
    )


def explain_unusable(topic: str, code: int, principal: Principal) -> str:
    """Return why a topic cannot be written to, for an error of Metadata.

    Args:
        principal: Our identity at the brokers.
    """
    refused = f"{topic}: the broker answered error {code} ({ErrorCode(code).name})"
    if code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return refused
    return f"{refused}: `Write`, which implies `Describe`, is needed: {advise_right('Write', topic, principal)}"
