# SPDX-License-Identifier: Apache-2.0
"""Checks of a partition's claim, before a file is published or a transaction is committed."""

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
    """Check with ZooKeeper that the partition is still ours; wait while the lease is paused.

    Returns if it is. Has no time limit, like ``Claim.wait_usable``. Raises OwnershipLost, IncarnationChanged;
    RetriableSinkError if ZooKeeper does not answer. After RetriableSinkError the caller keeps its file and tries again.
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


async def wait_claim(claim: Claim) -> None:
    """Return when the claim may be used, without asking ZooKeeper. Raises OwnershipLost.

    Has no time limit, like ``Claim.wait_usable``.
    """
    while True:
        try:
            return claim.check()
        except LeasePaused:
            await claim.wait_usable()
