# SPDX-License-Identifier: Apache-2.0
"""Telemetry: events that components report (hooks), Prometheus metrics, and logs."""
