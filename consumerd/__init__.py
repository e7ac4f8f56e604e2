# SPDX-License-Identifier: Apache-2.0
"""consumerd: an asyncio consumer-group daemon for ZooKeeper-era Kafka clusters."""

__version__: str


def __getattr__(name: str) -> str:
    """Look the version up when it is asked for: the command line takes its signals before it loads anything."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("consumerd")
