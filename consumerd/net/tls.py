# SPDX-License-Identifier: Apache-2.0
"""TLS contexts of files in PEM, for whoever connects to brokers."""

from __future__ import annotations

import ssl
from pathlib import Path

from consumerd.errors import ConfigError


def make_context(
    setting: str, *, trusted: Path | None, certificate: Path | None, key: Path | None, check_hostname: bool
) -> ssl.SSLContext:
    """Make a context; without ``trusted`` the system's authorities are, ``key`` may stand in the certificate's file.

    Raises ConfigError that begins with ``setting`` and names the files; for an encrypted key, too.
    """
    try:
        context = ssl.create_default_context(cafile=trusted)
        if certificate is not None:
            context.load_cert_chain(certificate, key, password=_refuse_encrypted)
    except (OSError, ssl.SSLError) as error:
        named = " or ".join(str(path) for path in (trusted, certificate, key) if path is not None)
        raise ConfigError(f"{setting}: {named} cannot be used: {error}") from error
    context.check_hostname = check_hostname
    return context


def _refuse_encrypted() -> str:
    """Asked for a key's password. Without this OpenSSL would ask on the terminal, or on a worker's stdin, and wait."""
    raise OSError("its key is encrypted; a key without a password is needed")
