# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper: the session over aiozk, standing watches, where things lie and what the nodes hold."""
