# SPDX-License-Identifier: Apache-2.0
"""What brokers, topics and leaders there are, from ZooKeeper and from the brokers themselves."""
