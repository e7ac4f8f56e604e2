# SPDX-License-Identifier: Apache-2.0
"""Client library: producer, low-level consumer, lookup of offsets, directories of partition leaders.

Built on ``net`` and ``cluster``; needs neither a consumer group nor the daemon.
"""
