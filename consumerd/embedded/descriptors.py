"""How many files and connections a process may have open."""

from __future__ import annotations

import contextlib
import resource


def raise_descriptor_limit() -> None:
    """Take as many descriptors as the system grants without being asked again, as a JVM does when it starts.

    A log has one for each segment, a connection one; the soft limit is often 1024, which is a few hundred of either.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
