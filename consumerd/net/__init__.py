# SPDX-License-Identifier: Apache-2.0
"""Connections to brokers: bytes, request matching, versions, pooling. Knows brokers by address only."""
