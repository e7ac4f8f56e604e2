# SPDX-License-Identifier: Apache-2.0
"""Bytes of keys and values to typed Arrow columns, as a topic's settings say; what cannot be decoded has a reason. Pure.

Nothing here knows Spark: Arrow comes in, Arrow goes out, so that all of it runs in any process, batch by batch.

``columns``  decoders of one column, and what they return.
``plain``    ``raw`` and ``utf8``.
``rows``     what decoders that work value by value have in common.
``objects``  ``json``.
``avro``     ``avro``; ``avro_schema`` reads schemas.
``records``  whole records: key, value, event time; divides them into good and bad.
``loading``  decoders of a topic's settings; reads schema files.
"""
