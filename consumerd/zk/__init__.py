"""ZooKeeper: the session over aiozk, standing watches, where things lie and what the nodes hold."""
