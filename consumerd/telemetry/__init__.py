# SPDX-License-Identifier: Apache-2.0
"""Hooks, metrics and logs: how what happens inside becomes visible."""
