# SPDX-License-Identifier: Apache-2.0
"""The last look at a claim before something is published under it."""

from __future__ import annotations

from consumerd.errors import (
    CoordinationError,
    IncarnationChanged,
    LeasePaused,
    OwnershipLost,
    RetriableSinkError,
    SessionLost,
)
from consumerd.model import Claim


async def confirm_claim(claim: Claim) -> None:
    """Return when the partition is ours at this moment, waiting out a paused lease.

    Unbounded, as ``Claim.wait_usable`` is. Raises OwnershipLost, IncarnationChanged, and RetriableSinkError when nobody
    can tell: what was about to be published is kept then.
    """
    while True:
        try:
            return await claim.confirm()
        except LeasePaused:
            await claim.wait_usable()
        except (OwnershipLost, IncarnationChanged):
            raise
        except SessionLost as error:
            raise OwnershipLost(str(error)) from error
        except CoordinationError as error:
            raise RetriableSinkError(f"{claim.partition}: the claim could not be confirmed: {error}") from error
