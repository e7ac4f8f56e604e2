# SPDX-License-Identifier: Apache-2.0
"""Operator tools behind the commands: inspection, position moves and exports, quarantine, doctor."""
