# SPDX-License-Identifier: Apache-2.0
"""``consumerd produce`` on clusters of Kafka 0.6 and 0.7: its options, and its producer."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from consumerd.client.legacy_producer import run_legacy_producer
from consumerd.client.legacy_producer_rules import LegacyProducerSettings, UnknownOutcome
from consumerd.client.partitioner import LEGACY_PARTITIONER, make_legacy_partitioner
from consumerd.client.produce_handler import ProduceConnections
from consumerd.client.producer import Producer
from consumerd.client.producer_hooks import ProducerHooks
from consumerd.client.producer_settings import ProducerSettings
from consumerd.errors import ConfigError
from consumerd.zk.port import ZkClient


def add_legacy_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that only clusters of Kafka 0.6 and 0.7 have."""
    group = parser.add_argument_group("with Kafka 0.6 and 0.7")
    group.add_argument(
        "--magic", type=int, choices=[0, 1], help="format of messages: 1 of Kafka 0.7, 0 of Kafka 0.6 (1)"
    )
    group.add_argument(
        "--unknown", choices=[one.value for one in UnknownOutcome],
        help="records whose connection broke before the broker had confirmed them: send them again, which may write "
        "them twice, or fail (resend)",
    )  # fmt: skip


def refuse_legacy_options(args: argparse.Namespace) -> None:
    """Raise ConfigError if options were given that later releases do not have.

    They would do nothing: ``--unknown fail`` would still send records again.
    """
    for option, value in (("--magic", args.magic), ("--unknown", args.unknown)):
        if value is not None:
            raise ConfigError(f"{option}: only with Kafka 0.6 and 0.7, which need ZooKeeper; leave it out")


@asynccontextmanager
async def open_legacy_producer(
    args: argparse.Namespace, zk: ZkClient, pool: ProduceConnections, settings: ProducerSettings, hooks: ProducerHooks
) -> AsyncIterator[Producer]:
    """Run the producer of ``consumerd produce`` for Kafka 0.6 or 0.7 while the block runs.

    Args:
        args: Options of the command.
        zk: ZooKeeper session of the cluster, connected.
        pool: Connections to its brokers.

    Raises ConfigError for options that these releases do not have.
    """
    for option, given in (("--header", args.header), ("--null-value", args.null_value is not None)):
        if given:
            raise ConfigError(f"{option}: messages of Kafka 0.6 and 0.7 have a value and nothing else; leave it out")
    async with run_legacy_producer(
        zk,
        pool,
        settings=settings,
        legacy=LegacyProducerSettings(
            magic=1 if args.magic is None else args.magic,
            on_unknown=UnknownOutcome(args.unknown or UnknownOutcome.RESEND),
        ),
        partitioner=make_legacy_partitioner(args.partitioner or LEGACY_PARTITIONER, random.random, time.monotonic),
        hooks=hooks,
    ) as producer:
        yield producer
