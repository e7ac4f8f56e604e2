# SPDX-License-Identifier: Apache-2.0
"""Security protocols of brokers' listeners, as registrations and ``security.protocol`` name them. Pure.

HDP's brokers register ``PLAINTEXTSASL`` where Apache's say ``SASL_PLAINTEXT``; ``zk.znodes`` reads both.
"""

from __future__ import annotations

import enum


class SecurityProtocol(enum.StrEnum):
    """Protocol of a listener: plain text or TLS, without or with SASL."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @classmethod
    def choose(cls, *, tls: bool, sasl: bool) -> SecurityProtocol:
        """Return the protocol that has TLS and SASL, or not."""
        if sasl:
            return cls.SASL_SSL if tls else cls.SASL_PLAINTEXT
        return cls.SSL if tls else cls.PLAINTEXT

    @property
    def tls(self) -> bool:
        """True if connections are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def sasl(self) -> bool:
        """True if clients authenticate by SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)
