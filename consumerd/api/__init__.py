# SPDX-License-Identifier: Apache-2.0
"""The supported library: names that programs may import. ``docs/library.md`` has examples.

Names and signatures here change only with a new major release; a test compares them with ``api.txt``. Everything else
in ``consumerd`` may change in any release.

``ConsumerConnector``     a member of a consumer group; streams of records or batches.
``open_simple_consumer``  fetches and lookups of offsets, without a group.
``open_producer``         writes records.
``open_envelope``         takes records of a mirror to old brokers apart.
"""

from consumerd.access.address import ClusterAddress, TlsFiles, ZooKeeperCredential
from consumerd.access.sasl_login import SaslLogin, ZooKeeperLogin
from consumerd.client.consumer_records import ConsumerRecord
from consumerd.client.delivery import Delivery, RecordMetadata
from consumerd.client.opening import open_producer, open_simple_consumer
from consumerd.client.producer import Producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.simple_consumer import EARLIEST, LATEST, FetchedBatch, MultiFetched, SimpleConsumer
from consumerd.config.connector import ConnectorSettings
from consumerd.config.load import read_connector_settings
from consumerd.connector.connector import Blacklist, ConsumerConnector, Whitelist
from consumerd.connector.streams import MessageStream
from consumerd.errors import (
    AuthenticationFailed,
    BrokerError,
    ConfigError,
    ConnectionLost,
    ConsumerdError,
    CoordinationError,
    CorruptMessageError,
    LocalProtocolError,
    OffsetError,
    OffsetOutOfRange,
    ProduceError,
    ProducerFenced,
    ProtocolError,
    RecordTooLarge,
    RequestTimedOut,
    TransactionFailed,
    UnsupportedGeneration,
    UnsupportedVersion,
)
from consumerd.mirror.provenance import RecordOrigin, find_origin, open_envelope
from consumerd.model import PartitionKey, TopicPartition
from consumerd.telemetry.logs import log_to_standard_library
from consumerd.wire.compression import Codec
from consumerd.wire.records import Record, RecordBatch
from consumerd.zk.node_acl import AclProfile

__all__ = [
    "EARLIEST",
    "LATEST",
    "AclProfile",
    "AuthenticationFailed",
    "Blacklist",
    "BrokerError",
    "ClusterAddress",
    "Codec",
    "ConfigError",
    "ConnectionLost",
    "ConnectorSettings",
    "ConsumerConnector",
    "ConsumerRecord",
    "ConsumerdError",
    "CoordinationError",
    "CorruptMessageError",
    "Delivery",
    "FetchedBatch",
    "LocalProtocolError",
    "MessageStream",
    "MultiFetched",
    "OffsetError",
    "OffsetOutOfRange",
    "PartitionKey",
    "ProduceError",
    "Producer",
    "ProducerFenced",
    "ProducerSettings",
    "ProtocolError",
    "Record",
    "RecordBatch",
    "RecordMetadata",
    "RecordOrigin",
    "RecordTooLarge",
    "RequestTimedOut",
    "SaslLogin",
    "SimpleConsumer",
    "TlsFiles",
    "TopicPartition",
    "TransactionFailed",
    "UnsupportedGeneration",
    "UnsupportedVersion",
    "Whitelist",
    "ZooKeeperCredential",
    "ZooKeeperLogin",
    "find_origin",
    "open_envelope",
    "open_producer",
    "open_simple_consumer",
    "read_connector_settings",
]

log_to_standard_library()
