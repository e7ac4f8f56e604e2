# SPDX-License-Identifier: Apache-2.0
"""Positions of a group: the stores that hold them, and the progress within a claim."""
