# SPDX-License-Identifier: Apache-2.0
"""Sink ``kafka``: mirrors partitions into another Kafka cluster, each record exactly once.

``options``  settings, and their checks.
``target``   what all writers share: connections, leaders, the positions topic.
``failures`` texts and kinds of the target's errors.
``sink``     the sink; ``writer`` mirrors one partition, for one claim.

Each flush is one transaction in the target. It has the records, the source position behind them, and what they add to
the map of offsets (``mirror``). A writer begins with InitProducerId for the transactional id of its partition. That
fences each earlier writer, and ends its transaction. Then the writer reads back the position, and goes on there.
"""
