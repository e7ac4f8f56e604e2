# SPDX-License-Identifier: Apache-2.0
"""The process's limit of open files and connections."""

from __future__ import annotations

import contextlib
import resource


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, as a JVM does when it starts, and return what it is now.

    A log of the embedded broker has a descriptor for each segment, a daemon one for each open file of a sink, and each
    connection has one; the soft limit is often 1024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
