# SPDX-License-Identifier: Apache-2.0
"""Settings of the sink ``http``."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from consumerd.access.credential_file import CredentialFile, CredentialScheme
from consumerd.sinks.option_types import Bytes, FilePath, Milliseconds, PositiveMilliseconds, WholeNumber
from consumerd.sinks.options import SinkOptions
from consumerd.sinks.tls_options import TlsOptions

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""Name of a header (RFC 9110, section 5.6.2)."""
_FIELD_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_OURS: Final = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that the sink or its connection sets."""


def _check_url(value: SecretStr) -> SecretStr:
    """Refuse a URL that cannot be posted to.

    The messages do not repeat it, since it may hold a secret.
    """
    text = value.get_secret_value()
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("expected a URL such as https://host/path") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError("expected a URL such as https://host/path")
    if not text.isprintable() or " " in text:
        raise ValueError("a URL with spaces or control characters is not taken: write them as %20 and the like")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL with user and password is not taken: write them into a file, and name it in auth")
    if parts.fragment:
        raise ValueError("a URL with a fragment (#...) is not taken: servers do not get it")
    return value


def _check_header_name(value: str) -> str:
    if not _TOKEN.fullmatch(value):
        raise ValueError(f"{value!r} is not the name of a header")
    if value.lower() in _OURS:
        raise ValueError(f"{value} is set by the sink itself: remove it")
    return value


def _check_header_value(value: SecretStr) -> SecretStr:
    if not _FIELD_VALUE.fullmatch(value.get_secret_value()):
        raise ValueError("expected printable ASCII on one line")
    return value


HeaderName = Annotated[str, AfterValidator(_check_header_name)]
HeaderValue = Annotated[SecretStr, AfterValidator(_check_header_value)]


class HttpAuthOptions(BaseModel):
    """Authentication with the endpoint: a token or a password in a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scheme: CredentialScheme = Field(description="bearer: the file holds a token; basic: user:password.")
    credential_file: FilePath = Field(description="The file; it is read again when it changes.")

    def locate(self, setting: str) -> CredentialFile:
        """Return the file, for requests; ``setting`` begins error messages."""
        return CredentialFile(f"{setting}.credential_file", self.scheme, self.credential_file)


class HttpOptions(SinkOptions):
    """Settings of the sink ``http``."""

    url: Annotated[SecretStr, AfterValidator(_check_url)] = Field(description="The address that records are sent to.")
    method: Literal["POST", "PUT", "PATCH"] = Field(default="POST", description="Method of the requests.")
    headers: dict[HeaderName, HeaderValue] = Field(default={}, description="More headers of each request.")
    format: Literal["lines", "array"] = Field(
        default="lines", description="lines: one JSON object a line; array: one JSON array."
    )
    compression: Literal["none", "gzip"] = Field(default="none", description="Content-Encoding of the requests.")
    batch_records: Annotated[WholeNumber, Field(gt=0)] = Field(default=500, description="Most records of a request.")
    batch_bytes: Bytes = Field(default=1 << 20, description="Most bytes of a request before compression.")
    batch_ms: Milliseconds = Field(default=1000, description="A request is sent this long after its first record.")
    timeout_ms: PositiveMilliseconds = Field(
        default=30_000, description="Time for connecting, sending a request and receiving its response."
    )
    max_in_flight: Annotated[WholeNumber, Field(gt=0, le=1000)] = Field(
        default=8, description="Most requests at a time, of all partitions."
    )
    max_in_flight_per_partition: Annotated[WholeNumber, Field(gt=0, le=1000)] = Field(
        default=1, description="Most requests at a time of one partition; above 1 they may arrive in another order."
    )
    max_retry_after_ms: PositiveMilliseconds = Field(
        default=300_000, description="A longer Retry-After of the server is cut to this."
    )
    idempotency_header: HeaderName | None = Field(
        default="Idempotency-Key", description="The header with the key of the request's records; null: none."
    )
    auth: HttpAuthOptions | None = Field(default=None, description="Token or password for the endpoint.")
    tls: TlsOptions | None = Field(default=None, description="Files for TLS, if the URL is https.")
    proxy_from_environment: bool = Field(
        default=False, description="Whether HTTP_PROXY, HTTPS_PROXY and NO_PROXY are used."
    )

    @property
    def is_plain_text(self) -> bool:
        """True if requests are not encrypted."""
        return urlsplit(self.url.get_secret_value()).scheme == "http"

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        if self.tls is not None and self.is_plain_text:
            raise ValueError("tls: the url is not https, so these files are not used: write https, or remove tls")
        if self.max_in_flight_per_partition > self.max_in_flight:
            raise ValueError(
                f"max_in_flight_per_partition: {self.max_in_flight_per_partition} is above max_in_flight "
                f"({self.max_in_flight}): lower it, or raise max_in_flight"
            )
        names = [name.lower() for name in self.headers]
        if self.auth is not None and "authorization" in names:
            raise ValueError("headers: Authorization is set by auth: remove one of the two")
        if self.idempotency_header is not None and self.idempotency_header.lower() in names:
            raise ValueError(f"headers: {self.idempotency_header} is set by idempotency_header: remove one of the two")
        if len(set(names)) < len(names):
            raise ValueError("headers: a name is given twice, in capital and small letters")
        return self
