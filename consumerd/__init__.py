# SPDX-License-Identifier: Apache-2.0
"""consumerd: an asyncio consumer-group daemon for ZooKeeper-era Kafka clusters."""

__version__: str


def __getattr__(name: str) -> str:
    """Look up the version on first use.

    The command line installs its signal handlers before it loads anything.
    """
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("consumerd")
