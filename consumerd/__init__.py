"""consumerd: an asyncio consumer-group daemon for ZooKeeper-era Kafka clusters."""

from importlib.metadata import version

__version__ = version("consumerd")
