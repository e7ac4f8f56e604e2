# SPDX-License-Identifier: Apache-2.0
"""Supervised tasks, backoff, clocks, and observable values."""
