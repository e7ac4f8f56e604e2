# SPDX-License-Identifier: Apache-2.0
"""Compares a committed position with the end of the landed files. Pure.

The larger of the two counts. Delivery starts there; the doctor and audits report the offsets between the two.

=========  ==========  ======  =================================================================================
committed  landed end  counts  meaning
=========  ==========  ======  =================================================================================
none       150         150     nothing is committed yet
150        150         150     at rest
120        150         150     [120, 150) was landed and not committed: the last commit was lost, or the position
                               was moved back without a request
200        150         200     [150, 200) was committed and not landed: another member consumed it, or files are
                               missing
=========  ==========  ======  =================================================================================

Both positions are of one log: callers pass a committed position only if it belongs to the incarnation of the files.
"""

from __future__ import annotations

from dataclasses import dataclass

from consumerd.landing.ranges import Span


@dataclass(frozen=True, slots=True)
class LandedComparison:
    """A committed position beside the end of the landed files.

    Args:
        committed: The committed position if it is valid; else None.
        landed: The offset after the last landed offset.
    """

    committed: int | None
    landed: int

    @property
    def position(self) -> int:
        """Larger one of both positions: delivery starts there."""
        return self.landed if self.committed is None else max(self.committed, self.landed)

    @property
    def not_landed(self) -> Span | None:
        """Offsets that were committed and are in no file; None if there are none."""
        is_ahead = self.committed is not None and self.committed > self.landed
        return Span(self.landed, self.position) if is_ahead else None

    @property
    def not_committed(self) -> Span | None:
        """Offsets that were landed and not committed; None if there are none.

        Also None if no position is committed.
        """
        if self.committed is None or self.committed >= self.landed:
            return None
        return Span(self.committed, self.landed)
