"""What all models of settings are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Milliseconds = Annotated[int, Field(ge=0)]
PositiveMilliseconds = Annotated[int, Field(gt=0)]
Bytes = Annotated[int, Field(gt=0)]

#: Java's check of group and client ids (kafka.common.Config)
LEGAL_NAME = r"^[a-zA-Z0-9._\-]+$"


class Section(BaseModel):
    """A part of the settings: unknown keys fail, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)
