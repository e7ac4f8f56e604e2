# SPDX-License-Identifier: Apache-2.0
"""Clients that are not ours, behind one interface, and the script that all of them run: see ``script``."""
