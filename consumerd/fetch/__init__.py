"""Fetching: from partitions and positions to decoded record batches, within a memory budget."""
