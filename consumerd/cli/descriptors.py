# SPDX-License-Identifier: Apache-2.0
"""Raises the process's soft limit of open files and connections to the hard limit."""

from __future__ import annotations

import contextlib
import resource


def raise_descriptor_limit() -> int:
    """Raise the process's soft limit of open files (RLIMIT_NOFILE) to the hard limit.

    Returns the limit in force then, as a number of file descriptors. If the system refuses, the limit stays as it was.

    The soft limit is often 1024, which is too low: the embedded broker needs a descriptor for each segment of a log, a
    daemon one for each open file of a sink, and both need one for each connection. A JVM raises its limit, too, when it
    starts.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
