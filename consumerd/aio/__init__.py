# SPDX-License-Identifier: Apache-2.0
"""Helpers for asyncio: supervised tasks, backoff, clocks, timeouts, observable values."""
