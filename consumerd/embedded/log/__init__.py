# SPDX-License-Identifier: Apache-2.0
"""The partitions' logs: segments, indexes, recovery, retention, compaction.

Synchronous throughout. All input and output goes through the port ``files.LogFiles``, time comes in as ``now_ms``. The
files are Kafka's own, so that either opens a directory that the other wrote. What a log is and how it behaves: Kafka's
documentation, "Implementation: Log".
"""
