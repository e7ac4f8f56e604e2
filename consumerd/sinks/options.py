# SPDX-License-Identifier: Apache-2.0
"""Settings that sinks have in common, as pydantic models.

Each sink has its own model, ``<Sink>.Options``, which refuses unknown keys.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from consumerd.sinks.option_types import Bytes, Folder, PositiveMilliseconds


class SinkOptions(BaseModel):
    """Settings of every sink; each sink has a subclass with its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    on_rejected: Literal["stop", "skip", "quarantine"] = Field(
        default="stop", description="What follows a record that cannot be written."
    )


class ChainOptions(SinkOptions):
    """Settings of every sink that lands files."""

    path: Folder = Field(description="The folder below which files land: one cluster's, one group's, one sink's.")
    roll_bytes: Bytes = Field(default=128 << 20, description="A file is published when it is this large.")
    roll_ms: PositiveMilliseconds = Field(
        default=60_000, description="A file is published this long after its first record."
    )
    shared: bool = Field(
        default=True,
        description="Whether the replicas' path is one folder on one file system, or one of each replica's own.",
    )
