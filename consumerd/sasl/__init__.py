# SPDX-License-Identifier: Apache-2.0
"""SASL mechanisms: how a client proves its identity to brokers and to ZooKeeper."""
