# SPDX-License-Identifier: Apache-2.0
"""``security.protocol`` and ``sasl.jaas.config`` of Java's clients, read as our settings. Pure.

A login of Java is one module with options (KIP-85)::

    com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/etc/lake.keytab" principal="lake@X";
    org.apache.kafka.common.security.scram.ScramLoginModule required username="lake" password="...";

A password is never taken from there: it would have to pass through settings, which are listed and logged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_PROTOCOLS: Final[Mapping[str, Mapping[str, object]]] = {
    "PLAINTEXT": {},
    "SSL": {"cluster.tls.enabled": True},
    "SASL_PLAINTEXT": {"cluster.sasl.mechanism": "GSSAPI"},
    "PLAINTEXTSASL": {"cluster.sasl.mechanism": "GSSAPI"},  # of HDP
    "SASL_SSL": {"cluster.tls.enabled": True, "cluster.sasl.mechanism": "GSSAPI"},
}
"""Settings of each security protocol. Java's default mechanism, which ``sasl.mechanism`` overrides, is GSSAPI."""

_KERBEROS: Final = "com.sun.security.auth.module.Krb5LoginModule"
_PASSWORDS: Final = (
    "org.apache.kafka.common.security.plain.PlainLoginModule",
    "org.apache.kafka.common.security.scram.ScramLoginModule",
)
_LOGIN: Final = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\s*(.*?)\s*;\s*", re.DOTALL)
_OPTION: Final = re.compile(r"""\s*([\w.]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"';]+))""")


def read_protocol(text: str) -> Mapping[str, object]:
    """Return the settings that a ``security.protocol`` means. Raises ValueError."""
    try:
        return _PROTOCOLS[text]
    except KeyError:
        raise ValueError(f"expected one of {', '.join(_PROTOCOLS)}") from None


def read_jaas(text: str) -> Mapping[str, object]:
    """Return the settings that a ``sasl.jaas.config`` means.

    Raises ValueError, which repeats nothing of the text but the name of the module.
    """
    match = _LOGIN.fullmatch(text)
    if match is None:
        raise ValueError("expected one login: module, required, options, and a semicolon")
    module, options = match[1], _read_options(match[2])
    if module in _PASSWORDS:
        if "password" in options:
            raise ValueError(
                "its password is not taken: write it into a file of its own that only we can read, give "
                "cluster.sasl.password_file, and remove it here"
            )
        return {f"cluster.sasl.{name}": options[name] for name in ("username",) if name in options}
    if module != _KERBEROS:
        raise ValueError(f"expected Krb5LoginModule, PlainLoginModule or ScramLoginModule, got {module}")
    names = {"principal": "principal", "serviceName": "service_name"}
    if options.get("useKeyTab") == "true":
        names["keyTab"] = "keytab"
    return {f"cluster.sasl.{ours}": options[theirs] for theirs, ours in names.items() if theirs in options}


def _read_options(text: str) -> Mapping[str, str]:
    options = {}
    at = 0
    while at < len(text):
        match = _OPTION.match(text, at)
        if match is None:
            raise ValueError("expected options as name=value, separated by spaces")
        options[match[1]] = next(value for value in match.groups()[1:] if value is not None)
        at = match.end()
    return options
