# SPDX-License-Identifier: Apache-2.0
"""Telemetry: hooks, metrics and logs."""
