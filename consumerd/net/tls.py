# SPDX-License-Identifier: Apache-2.0
"""TLS contexts for connections to brokers, and what PEM files say of certificates.

Python's ssl module gives the expiry time of peers' and authorities' certificates only. That of our own certificate is
parsed from its DER encoding: ``Certificate / tbsCertificate / validity / notAfter`` (RFC 5280, section 4.1). So is its
subject, which brokers take for our name: Java writes it by RFC 2253 (``X500Principal.getName``).
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from consumerd.errors import ConfigError

_PEM: Final = re.compile(r"-----BEGIN ((?:TRUSTED |X509 )?CERTIFICATE)-----(.+?)-----END \1-----", re.DOTALL)
"""Blocks that OpenSSL loads as certificates.

In a trusted certificate, trust settings follow the certificate itself (``X509_AUX`` of OpenSSL); they are not read.
"""
_VERSION: Final = 0xA0
_TIMES: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""Formats of UTCTime and GeneralizedTime, by tag.

Two-digit years begin with 1969 in Python and with 1950 in RFC 5280.
"""
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""Attributes that have a keyword in RFC 2253, section 2.3."""
_TEXTS: Final = {0x0C: "utf-8", 0x13: "ascii", 0x16: "ascii"}
"""Encodings of UTF8String, PrintableString and IA5String, by tag."""
_SPECIAL: Final = re.compile(r'[,=+<>#;"\\]|^ +| +$')
"""What Java escapes in a value: more than RFC 2253, section 2.4, asks for (measured with Java 17)."""


def make_context(
    setting: str, *, trusted: Path | None, certificate: Path | None, key: Path | None, check_hostname: bool
) -> ssl.SSLContext:
    """Return a TLS context for clients.

    Args:
        setting: Name of the setting, with which error messages begin.
        trusted: File with the certificates of trusted authorities; None for the system's.
        certificate: File with our certificate; None for a client without one.
        key: File with our private key; None if the key is in the certificate's file.
        check_hostname: True to compare the name in the broker's certificate with its address.

    Raises ConfigError, which names the files, also for an encrypted key.
    """
    try:
        context = ssl.create_default_context(cafile=trusted)
    except (OSError, ssl.SSLError) as error:
        raise _unusable(setting, error, trusted) from error
    if certificate is not None:
        load_own_certificate(context, setting, certificate, key)
    context.check_hostname = check_hostname
    return context


def load_own_certificate(context: ssl.SSLContext, setting: str, certificate: Path, key: Path | None) -> None:
    """Load our certificate and its key into a context, in place of earlier ones.

    Raises ConfigError, which names the files, also for an encrypted key.

    Args:
        setting: Name of the setting, with which error messages begin.
        key: File with our private key; None if the key is in the certificate's file.
    """
    try:
        context.load_cert_chain(certificate, key, password=_refuse_encrypted)
    except (OSError, ssl.SSLError) as error:
        raise _unusable(setting, error, certificate, key) from error


def _unusable(setting: str, error: Exception, *files: Path | None) -> ConfigError:
    named = " or ".join(str(path) for path in files if path is not None)
    return ConfigError(f"{setting}: {named} cannot be used: {error}")


def find_unpaired(certificate: Path | None, key: Path | None) -> tuple[str, str] | None:
    """Return the settings ``certificate_file`` and ``key_file``, the given one first, if just one is given.

    They go together; None if both are given, or neither.
    """
    if (certificate is None) == (key is None):
        return None
    return ("key_file", "certificate_file") if certificate is None else ("certificate_file", "key_file")


def _refuse_encrypted() -> str:
    """Refuse to give the password of a key.

    Without this callback, OpenSSL asks on the terminal, or on a worker's stdin, and waits.
    """
    raise OSError("its key is encrypted; a key without a password is needed")


def read_ends(text: str) -> list[float]:
    """Return the expiry time of each certificate of a PEM file.

    Times are in seconds since the epoch. Raises ValueError if a block is no certificate.
    """
    return [_read_end(base64.b64decode(body)) for _, body in _PEM.findall(text)]


def read_subject(text: str) -> str:
    """Return the subject of the first certificate of a PEM file.

    It is written as a broker names the client by default. Example: ``CN=lake,OU=data,O=Example,C=DE``. Raises
    ValueError without a certificate.
    """
    found = _PEM.search(text)
    if found is None:
        raise ValueError("no certificate")
    # the last part of the sequence comes first
    parts = _read_contents(_read_fields(base64.b64decode(found[2]))[4])
    return ",".join("+".join(map(_show_attribute, _read_contents(part))) for part in reversed(parts))


def _show_attribute(der: bytes) -> str:
    (_, kind), (tag, value) = _read_elements(der)
    oid = _show_oid(kind)
    keyword = _KEYWORDS.get(oid)
    if keyword is None or tag not in _TEXTS:
        # tag and length of the identifier are a byte each
        return f"{keyword or oid}=#{der[2 + len(kind) :].hex()}"
    return f"{keyword}={_escape(value.decode(_TEXTS[tag]))}"


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda found: "".join(f"\\{character}" for character in found[0]), text)


def _show_oid(der: bytes) -> str:
    numbers, number = [], 0
    for byte in der:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise ValueError("an object identifier is empty")
    root = min(numbers[0] // 40, 2)
    return ".".join(map(str, (root, numbers[0] - 40 * root, *numbers[1:])))


def _read_fields(der: bytes) -> list[bytes]:
    """Return serialNumber, signature, issuer, validity, subject and what follows."""
    fields = [content for tag, content in _read_elements(_first(_first(der))) if tag != _VERSION]
    if len(fields) < 5:
        raise ValueError(f"{len(fields)} fields in a certificate")
    return fields


def _read_contents(der: bytes) -> list[bytes]:
    return [content for _, content in _read_elements(der)]


def _read_end(der: bytes) -> float:
    times = list(_read_elements(_read_fields(der)[3]))
    if len(times) != 2 or times[1][0] not in _TIMES:
        raise ValueError("no validity in a certificate")
    tag, content = times[1]
    return datetime.strptime(content.decode("ascii"), _TIMES[tag]).replace(tzinfo=UTC).timestamp()


def _first(der: bytes) -> bytes:
    for _, content in _read_elements(der):
        return content
    raise ValueError("an element is empty")


def _read_elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element. Raises ValueError where one is cut off."""
    position = 0
    while position < len(der):
        header = der[position : position + 2]
        if len(header) < 2:
            raise ValueError("an element is cut off")
        tag, size = header
        position += 2
        if size & 0x80:
            width = size & 0x7F
            size = int.from_bytes(der[position : position + width])
            position += width
        if position + size > len(der):
            raise ValueError("an element is cut off")
        yield tag, der[position : position + size]
        position += size
