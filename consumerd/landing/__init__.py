# SPDX-License-Identifier: Apache-2.0
"""Format of landed files: names, records, publishing and reading. No Spark, no ZooKeeper.

Sinks write in this format. The command ``doctor``, the audit and the Spark job ``bronze`` read it. The modules, in the
order in which a file meets them:

- ``chain``, ``record_fields``: names, JSON records beside the data, metadata.
- ``filesystem``, ``publish``, ``erasing``: file operations, publishing under a final name, replacement.
- ``metadata``, ``scan``, ``footers``: metadata of one file, names of all landed files, metadata of all files.
- ``plan``, ``coverage``: which file gives which record to a table, and the offsets that the table has.
- ``resuming``: the committed position beside the end of the landed files.
- ``examine``, ``chain_checks``, ``findings``, ``report``: the audit, which accounts for every offset.
"""
