# SPDX-License-Identifier: Apache-2.0
"""Decodes keys and values into typed Arrow columns, and tells bad records from good ones.

The formats come from a topic's settings. A value that cannot be decoded becomes null, with a reason. Needs no Spark:
takes and returns Arrow batches, so it runs in any process. Pure, except for ``loading`` and ``avro_schema``, which read
schema files.

``columns``      the protocol of a decoder of one column.
``plain``        the formats ``raw`` and ``utf8``.
``objects``      the format ``json``.
``avro``         the format ``avro``.
``avro_schema``  Avro schemas and their columns.
``rows``         decoding value by value, for ``json`` and ``avro``.
``records``      whole records: key, value and event time; divides them into good and bad.
``loading``      makes decoders from a topic's settings.
"""
