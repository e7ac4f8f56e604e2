# SPDX-License-Identifier: Apache-2.0
"""The logs of partitions: segments, indexes, recovery, retention, compaction.

Synchronous throughout. All input and output goes through ``files.OsLogFiles``; time is passed in as
``now_ms``. The files are Kafka's own, so each can open a directory that the other wrote. Behaviour: Kafka's
documentation, "Implementation: Log".
"""
