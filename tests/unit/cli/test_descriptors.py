# SPDX-License-Identifier: Apache-2.0
"""The limit of open files, as a process takes it."""

from __future__ import annotations

import resource

from consumerd.cli.descriptors import raise_descriptor_limit


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    """1024 is a few hundred connections and files; what is over takes sinks and brokers away."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before, hard, 512), hard))
    try:
        assert hard == raise_descriptor_limit()
        assert (hard, hard) == resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
