# SPDX-License-Identifier: Apache-2.0
"""Access to a Kafka cluster: its address, and the function that connects to it."""
