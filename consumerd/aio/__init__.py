"""Supervised tasks, backoff, clocks, and values to wait on."""
