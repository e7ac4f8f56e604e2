# SPDX-License-Identifier: Apache-2.0
"""Where a group's positions are kept, and how far a partition has got."""
