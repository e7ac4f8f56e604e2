# SPDX-License-Identifier: Apache-2.0
"""Clients on real sockets, against the embedded broker."""
