# SPDX-License-Identifier: Apache-2.0
"""Fetching: from partitions and positions to decoded record batches, within a memory budget."""
