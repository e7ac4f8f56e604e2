# SPDX-License-Identifier: Apache-2.0
"""Failures of programs that tests start and that are not ours: brokers, ZooKeeper, Kafka's tools, producers, Kerberos."""


class ProgramFailed(RuntimeError):
    """A program that is not ours did not start, or did not do what it was told.

    It says nothing of what we did with records: what it should have written, we were not to read. Consumers are no such
    programs: they share a group with us, so their end may be our fault.
    """
