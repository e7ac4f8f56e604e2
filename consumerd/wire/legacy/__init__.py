# SPDX-License-Identifier: Apache-2.0
"""Messages and message sets of Kafka 0.6 and 0.7."""
