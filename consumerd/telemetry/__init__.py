"""Hooks, metrics and logs: how what happens inside becomes visible."""
