# SPDX-License-Identifier: Apache-2.0
"""Kafka client pieces that need no daemon: a library above the connections and the cluster view."""
