# SPDX-License-Identifier: Apache-2.0
"""Logs and metrics of one member: failures, conflicts, rebalances and disagreements."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from structlog.typing import FilteringBoundLogger

from consumerd.errors import CoordinationError
from consumerd.group import events as ev
from consumerd.group.plan import Disagreement
from consumerd.group.status import PastRebalance
from consumerd.telemetry.hooks import Hooks, Trouble

_REBALANCES_KEPT: Final = 20


class GroupReports:
    """Logs and metrics of one member, without repeating a report whose cause lasts.

    Args:
        wall_ms: Returns calendar time in ms since the epoch, for display only.
    """

    def __init__(self, *, hooks: Hooks, log: FilteringBoundLogger, wall_ms: Callable[[], int]) -> None:
        self._hooks = hooks
        self._log = log
        self._wall_ms = wall_ms
        self._rebalances: deque[PastRebalance] = deque(maxlen=_REBALANCES_KEPT)
        self.last_error: str | None = None
        """The failure that still lasts, or None."""

    @property
    def rebalances(self) -> tuple[PastRebalance, ...]:
        """The last rebalances that gave or took partitions, oldest first."""
        return tuple(self._rebalances)

    def fail(self, event: Trouble, error: CoordinationError) -> None:
        """Report that the group could not be read or written.

        Only the first of several failures in a row is reported, until :meth:`recover`.
        """
        if self.last_error is None:
            self._log.warning(event.value, error=str(error))
            self._hooks.trouble(event, str(error))
        self.last_error = str(error)

    def recover(self) -> None:
        """Note that the group can be read and written again."""
        if self.last_error is not None:
            self._log.info("group_readable_again")
            self.last_error = None

    def tell_owners_unread(self, error: CoordinationError) -> None:
        """Report that owner nodes could not be read."""
        self._log.warning("owners_unread", error=str(error))
        self._hooks.trouble(Trouble.OWNERS_UNREAD, str(error))

    def tell_conflict(self, effect: ev.ReportConflict) -> None:
        """Report that another member owns a partition that is assigned to this one.

        In a handover that is normal, so the report is a warning only for the attempt that uses up the configured
        retries, and a debug message else.
        """
        self._hooks.claim_conflicted(effect.partition, effect.holder.thread)
        log = self._log.warning if effect.starved else self._log.debug
        log(
            "claim_conflicted",
            partition=str(effect.partition),
            holder=effect.holder.thread,
            session=hex(effect.holder.session_id),
            attempts=effect.attempts,
        )

    def tell_rebalance(self, rebalance: ev.Rebalance) -> None:
        """Report the end of a rebalance.

        A rebalance in which this member gained or lost no partition is logged at debug level only.
        """
        if not rebalance.gained and not rebalance.lost:
            self._log.debug("rebalance_finished", causes=rebalance.causes, stayed=rebalance.stayed)
            return
        self._rebalances.append(PastRebalance(ended_ms=self._wall_ms(), rebalance=rebalance))
        self._hooks.rebalance_finished(
            cause=rebalance.causes[0],
            seconds=rebalance.seconds,
            phases=dict(rebalance.phases),
            gained=rebalance.gained,
            lost=rebalance.lost,
        )
        self._log.info(
            "rebalance_finished",
            causes=rebalance.causes,
            seconds=round(rebalance.seconds, 3),
            gained=rebalance.gained,
            lost=rebalance.lost,
            stayed=rebalance.stayed,
            **{f"{name}_s": round(seconds, 3) for name, seconds in rebalance.phases.items()},
        )

    def tell_disagreements(self, found: Collection[Disagreement], before: Collection[Disagreement]) -> None:
        """Report the reasons for different assignments in ``found`` that are not in ``before``.

        ``before`` has those of the previous comparison, which were reported then.
        """
        for disagreement in found:
            if disagreement not in before:
                who = f"{disagreement.member}: " if disagreement.member is not None else ""
                self._hooks.group_disagreed(disagreement.kind.value, who + disagreement.detail)
                self._log.warning(
                    "members_disagree",
                    kind=disagreement.kind.value,
                    member=disagreement.member,
                    detail=disagreement.detail,
                )
