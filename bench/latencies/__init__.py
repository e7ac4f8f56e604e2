# SPDX-License-Identifier: Apache-2.0
"""Processes and sink of :mod:`bench.latency`: the producer, and readers that note arrival times."""
