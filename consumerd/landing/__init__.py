# SPDX-License-Identifier: Apache-2.0
"""The format of landed files: the one home of its names, records, publishing and reading. No Spark, no ZooKeeper.

Sinks write by it; the doctor, the audit and bronze read by it. In the order in which a file meets them:

- ``chain``, ``record_fields``: names, records beside the data, metadata.
- ``filesystem``, ``publish``, ``erasing``: file operations, publishing under a final name, replacement.
- ``metadata``, ``scan``, ``footers``: metadata of one file, names of a landing zone, metadata of all its files.
- ``plan``, ``coverage``: which file gives which record to a table, and what the table has.
- ``examine``, ``chain_checks``, ``findings``, ``report``: the account of every offset.
"""
