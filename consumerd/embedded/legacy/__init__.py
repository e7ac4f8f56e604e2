# SPDX-License-Identifier: Apache-2.0
"""The embedded broker of Kafka 0.6 and 0.7."""
