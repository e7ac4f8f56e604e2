# SPDX-License-Identifier: Apache-2.0
"""Members of a consumer group: their parts, and the connector for programs.

``member``           makes, runs and stops the parts of one member; daemons and connectors use it.
``membership``       makes the membership in a group: in ZooKeeper, or coordinated by a broker.
``cluster_search``   waits for brokers before the group is joined.
``position_guard``   refuses a start if the store of positions that is not read holds larger ones.
``sink_fetchers``    one fetcher for each sink.
``records``          records as programs get them.
``streams``          streams of records: a sink whose destination is the program.
``connector``        ``ConsumerConnector`` of the Kafka documentation: streams over group, fetching and positions.

Programs import ``consumerd.api``.
"""
