# SPDX-License-Identifier: Apache-2.0
"""Kafka's wire protocol without IO: frames, requests and responses, messages, compression, decoded records."""
