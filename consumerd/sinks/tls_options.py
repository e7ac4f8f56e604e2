# SPDX-License-Identifier: Apache-2.0
"""Settings of TLS to a sink's destination."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from consumerd.access.address import TlsFiles
from consumerd.net.tls import find_unpaired
from consumerd.sinks.option_types import FilePath


class TlsOptions(BaseModel):
    """Files for TLS to a sink's destination, in PEM format, as in ``cluster.tls``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ca_file: FilePath | None = Field(default=None, description="Trusted authorities; null: those of the system.")
    certificate_file: FilePath | None = Field(default=None, description="Our certificate; null: none.")
    key_file: FilePath | None = Field(default=None, description="Our private key, without a password.")
    check_hostname: bool = Field(default=True, description="Whether the certificate must be for the host's name.")

    @model_validator(mode="after")
    def _files_go_together(self) -> Self:
        if (unpaired := find_unpaired(self.certificate_file, self.key_file)) is not None:
            given, other = unpaired
            raise ValueError(f"{given}: certificate_file and key_file go together: give {other}, too")
        return self

    def locate(self, setting: str) -> TlsFiles:
        """Return the files, for a TLS context; ``setting`` begins error messages."""
        return TlsFiles(
            setting=setting,
            trusted=self.ca_file,
            certificate=self.certificate_file,
            key=self.key_file,
            check_hostname=self.check_hostname,
        )
