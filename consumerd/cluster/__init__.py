"""What brokers, topics and leaders there are, from ZooKeeper and from the brokers themselves."""
