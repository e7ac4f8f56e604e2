# SPDX-License-Identifier: Apache-2.0
"""Sink ``http``: batches of records as HTTP requests, acknowledged by the responses.

``options``     settings, and their checks.
``outbox``      one partition's encoded records, cut into requests; the idempotency keys.
``answers``     the meaning of a status code, and of ``Retry-After``.
``credential``  token or password in a file, read again when the file changes.
``memory``      limit of the memory that encoded records take.
``endpoint``    sends requests: connections, limits, pauses that the server asks for.
``sink``        the sink; ``writer`` sends one partition's records.

Delivery is at least once, since the endpoint keeps no position that could be read back. A request that was received,
and whose response was lost, is sent again with the same idempotency key.
"""
