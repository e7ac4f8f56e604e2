# SPDX-License-Identifier: Apache-2.0
"""Stops of a partition by a policy, and moves to a lower position.

:mod:`consumerd.delivery.flow` raises them, and the pipeline handles them.
"""

from __future__ import annotations

from dataclasses import replace

from consumerd.delivery.passing import explain_way_on
from consumerd.delivery.policy import OFFSETS_SET, Reposition, Stop, StopCause
from consumerd.errors import ConsumerdError, CorruptMessageError, OffsetOutOfRange, PermanentSinkError, RecordTooLarge


class StopDelivery(Exception):
    """Raised if a policy stops delivery; all records delivered before were flushed, if possible.

    ``stop`` is the cause with its advice. ``error`` is the error about which the policy had to decide; None if there
    was none.
    """

    def __init__(self, stop: Stop, error: ConsumerdError | None = None) -> None:
        super().__init__(stop.advice)
        self.stop = stop
        self.error = error

    @property
    def is_replaced(self) -> bool:
        """True if delivery was stopped because the log is another one than before."""
        return isinstance(self.error, OffsetOutOfRange) and self.error.replaced


class MoveBack(Exception):
    """Raised if a truncated log makes delivery continue at a lower position.

    Delivery needs a new writer then. ``move`` has the new position; ``error`` has the old one and the log's range.
    """

    def __init__(self, move: Reposition, error: OffsetOutOfRange) -> None:
        super().__init__(str(error))
        self.move = move
        self.error = error


def plan_stop(error: ConsumerdError, *, replicated: bool = True) -> Stop:
    """Return the stop for an error that will not go away by itself.

    A stopped partition stays claimed, but nothing of it is delivered.

    Args:
        error: The error.
        replicated: True if the log has replicas.
    """
    if isinstance(error, CorruptMessageError):
        remedy = (
            "a replica whose copy is whole would do as leader, else set fetch.on_corrupt"
            if replicated
            else "the log is damaged, or the broker was wiped and its log is another one: set fetch.on_corrupt"
        )
        advice = f"{error}; {remedy}, or say where to go on with {OFFSETS_SET}{explain_way_on(error)}"
        return Stop(cause=StopCause.CORRUPT, advice=advice)
    if isinstance(error, RecordTooLarge):
        advice = f"{error}; or say where to go on with {OFFSETS_SET}{explain_way_on(error)}"
        return Stop(cause=StopCause.OVERSIZED, advice=advice)
    if isinstance(error, PermanentSinkError) and error.refused is not None:
        advice = f"{error}; set the sink's on_rejected, or say where to go on with {OFFSETS_SET}"
        return Stop(cause=StopCause.REJECTED, advice=advice, by_sink=True)
    return Stop(cause=StopCause.REJECTED, advice=str(error), by_sink=True)


def explain_unpassable(stop: Stop, end: int | None) -> Stop:
    """Return the stop at a unit to be passed over whose end is unknown.

    Args:
        stop: The stop for the unit's error.
        end: Offset up to which records were searched; None if it is unknown.
    """
    if end is None and stop.cause is StopCause.CORRUPT:
        # Kafka 0.7: any offset leads somewhere, also into a message
        advice = (
            f"{stop.advice}; it cannot be passed over, since nothing fetched behind it proves where a message begins; "
            "the position of a time behind it is one (offsets reset --to), since a log segment begins there; this is "
            "retried"
        )
        return replace(stop, advice=advice)
    searched = "" if end is None else f" up to offset {end}"
    advice = (
        f"{stop.advice}; it cannot be passed over, since no readable record was found after it{searched}; "
        "this is retried"
    )
    return replace(stop, advice=advice)
