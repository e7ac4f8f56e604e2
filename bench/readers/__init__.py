# SPDX-License-Identifier: Apache-2.0
"""Who reads: each a process of its own that says, or shows, how much it has read when."""
