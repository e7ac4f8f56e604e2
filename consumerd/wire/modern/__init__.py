# SPDX-License-Identifier: Apache-2.0
"""Protocol of Kafka 0.8 and later: versioned requests, message sets and record batches."""
