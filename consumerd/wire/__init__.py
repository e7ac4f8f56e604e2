# SPDX-License-Identifier: Apache-2.0
"""Bytes and values: framing, schemas, sessions, compression, records; sans IO, all of it pure."""
