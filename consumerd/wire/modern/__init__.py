# SPDX-License-Identifier: Apache-2.0
"""The protocol of 0.8 and later: versioned requests, message sets (magic 0 and 1) and record batches (magic 2)."""
