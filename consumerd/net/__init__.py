# SPDX-License-Identifier: Apache-2.0
"""Connections to brokers: bytes, correlation, versions, pooling. Knows brokers by address, and no cluster."""
