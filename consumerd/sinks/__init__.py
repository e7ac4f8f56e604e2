# SPDX-License-Identifier: Apache-2.0
"""Sinks: the destinations of records, the interface that they implement, and their registry.

``base``              the interface: ``Sink``, ``PartitionWriter``, ``Quarantine``.
``registry``          finds sinks by type, among entry points.
``options``           settings that sinks share; ``option_types`` their types.
``jsonl``             JSON lines in files; ``lines`` encodes them.
``parquet``           Parquet files; ``arrow_pieces`` makes Arrow batches.
``stdout``            JSON lines on stdout.
``http``              requests to a web service.
``null``              reads records and drops them.
``chain_sink``        what ``jsonl`` and ``parquet`` share: a partition's files form a *chain* (``landing.chain``).
``chain_writer``      writes one partition's chain for one claim.
``chain_succession``  seals a chain and begins the next.
``chain_store``       path, limits, threads and memory of a sink's writers.
``chain_root``        checks that the right volume is mounted.
``files``             one file, from its first byte to its final name.
``confirming``        the check of the claim before a file is published.
``quarantine``        files of records that a policy skips; ``quarantine_record`` their format.
"""
