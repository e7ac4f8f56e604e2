# SPDX-License-Identifier: Apache-2.0
"""Servers of the Kafka world inside or beside our own process: for the demo, for tests and for development."""
