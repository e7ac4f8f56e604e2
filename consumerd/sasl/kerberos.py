# SPDX-License-Identifier: Apache-2.0
"""Security contexts of Kerberos, by the library gssapi (extra ``kerberos``).

It calls the system's MIT Kerberos, whose configuration counts: ``krb5.conf``, or the file in ``KRB5_CONFIG``.
Credentials are acquired for each connection, because they expire. With a keytab, tickets are kept in the memory of this
process; :class:`TicketCache` fetches and renews them, ahead of the connections (``access.tickets``). Without one, the
system's cache counts (``KRB5CCNAME``), which others renew (kinit -R, k5start, sssd).

All functions may block: for most of a minute if a Kerberos server accepts a connection and says nothing.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from consumerd.errors import AuthenticationFailed, ConfigError
from consumerd.installation import install_command
from consumerd.sasl.gssapi_client import SecurityContext

_NO_TICKET: Final = "there is no ticket: run kinit as this user, or give keytab and principal"
_WRONG_KEYTAB: Final = (
    "the keytab has no key for the principal, or an old one: compare both (klist -kt), or export it anew"
)
_ADVICE: Final = (
    ("credential has expired", "it was not renewed in time: no Kerberos server of the realm has answered since"),
    ("ticket expired", "renew it (kinit), or give keytab and principal, which renew by themselves"),
    ("clock skew", "the clocks of this host and of the Kerberos server differ by minutes: synchronise them"),
    ("cannot contact any kdc", "no Kerberos server of the realm answers: check kdc in krb5.conf, and the network"),
    ("cannot find kdc", "no Kerberos server of the realm is known: check realm and kdc in krb5.conf"),
    (
        "server .* not found",
        "a server's principal is service_name/host: compare service_name, and the server's address",
    ),
    ("client .* not found", "the Kerberos server does not know the principal: check principal"),
    ("decrypt integrity|preauthentication failed|no suitable keys|key table", _WRONG_KEYTAB),
)
"""Remedies by an expression that the library's message has, in lower case. The first that fits counts."""
_MINOR: Final = re.compile(r"Minor \(\d+\): (?!Success)(.+)", re.DOTALL)
"""Text of Kerberos in a message of the library, whose other parts say nothing then."""
_MAJOR: Final = re.compile(r"Major \(\d+\): (.+?), Minor", re.DOTALL)
"""Text of GSS-API, which counts if that of Kerberos is "Success": for a ticket that has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KerberosLogin:
    """Kerberos identity of this process.

    Attributes:
        principal: Principal, such as ``lake@EXAMPLE.COM``; None for that of the system's ticket cache.
        keytab: File with the principal's keys; None for tickets of the system's cache.
    """

    principal: str | None = None
    keytab: Path | None = None

    @property
    def name(self) -> str:
        """Principal, or ``ticket cache``, for metrics."""
        return self.principal or "ticket cache"


def require_gssapi(setting: str) -> None:
    """Raise ConfigError, which begins with ``setting``, if the library is not installed, or lacks Kerberos."""
    try:
        import gssapi
    except ImportError as error:
        # OSError's kin: the library is there, and the system's libgssapi_krb5 is not
        raise ConfigError(
            f"{setting}: GSSAPI needs the extra kerberos: {install_command('kerberos')}; pip builds it with "
            f"libkrb5-dev and a C compiler, and it needs libgssapi-krb5-2 at run time ({error})"
        ) from error
    assert gssapi is not None


class TicketCache:
    """Tickets of one identity, in the system's cache or in this process's memory.

    Those of a keytab are in memory.

    The methods may be called in several threads.
    """

    def __init__(self, login: KerberosLogin) -> None:
        self.login = login
        self._name = None if login.keytab is None else _name_cache(login)

    def acquire(self) -> float:
        """Return the seconds that are left of the ticket.

        With a keytab, it is fetched if there is none, and renewed when half of its life has passed; a renewal that
        fails leaves it as it is. Raises AuthenticationFailed with a remedy without a ticket.
        """
        return self._acquire(self._name)

    def replace(self) -> None:
        """Fetch another ticket of the keytab into an empty cache.

        Tickets for services are forgotten, too. On failure the cache stays as it is. Raises AuthenticationFailed.
        """
        # Under another name: the library has no call that empties a cache, and would go on with the difference of
        # clocks that is noted in it. What is left of the old one are about two kilobytes.
        name = f"{_name_cache(self.login)}-{secrets.token_hex(8)}"
        self._acquire(name)
        self._name = name

    def open_context(self, service: str, host: str) -> SecurityContext:
        """Return a security context for a service on a host, with the ticket of :meth:`acquire`.

        Raises AuthenticationFailed with a remedy without a ticket.
        """
        # without the keytab, so that the library does not renew the ticket here, and wait for a server that is silent
        return _open_context(self.login, None if self._name is None else {"ccache": self._name}, service, host)

    def _acquire(self, name: str | None) -> float:
        import gssapi

        store = None if name is None else {"client_keytab": str(self.login.keytab), "ccache": name}
        try:
            return float(_acquire(self.login, store).lifetime or 0)
        except gssapi.exceptions.GSSError as error:
            raise _refuse(error, self.login) from error


def _open_context(login: KerberosLogin, store: Mapping[str, str] | None, service: str, host: str) -> SecurityContext:
    import gssapi

    try:
        credentials = _acquire(login, store)
        context = gssapi.SecurityContext(
            name=gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service),
            usage="initiate",
            mech=gssapi.MechType.kerberos,
            creds=credentials,
            flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity,
        )
    except gssapi.exceptions.GSSError as error:
        raise _refuse(error, login) from error
    return _Context(context, f"a ticket for {service}/{host}")


def _acquire(login: KerberosLogin, store: Mapping[str, str] | None) -> Any:
    """Return credentials of the library from a store; None for the system's cache."""
    import gssapi

    name = None if login.principal is None else gssapi.Name(login.principal, gssapi.NameType.kerberos_principal)
    return gssapi.Credentials(name=name, usage="initiate", store=store)


def _name_cache(login: KerberosLogin) -> str:
    """Return the name of the cache for tickets of a keytab, in this process's memory.

    Each principal has its own: the library refuses a cache that holds tickets of another one.
    """
    own = hashlib.sha256(f"{login.principal} {login.keytab}".encode()).hexdigest()[:16]
    return f"MEMORY:consumerd-{own}"


class _Context:
    """A context of the library gssapi, as :class:`SecurityContext`."""

    def __init__(self, context: Any, purpose: str) -> None:
        import gssapi

        self._context = context
        self._purpose = purpose
        self._failure: type[Exception] = gssapi.exceptions.GSSError

    @property
    def complete(self) -> bool:
        return bool(self._context.complete)

    def step(self, token: bytes | None) -> bytes | None:
        try:
            answer: bytes | None = self._context.step(token)
        except self._failure as error:
            raise _translate(error, self._purpose) from error
        return answer

    def unwrap(self, message: bytes) -> bytes:
        try:
            return bytes(self._context.unwrap(message).message)
        except self._failure as error:
            raise _translate(error, self._purpose) from error

    def wrap(self, message: bytes) -> bytes:
        try:
            # False: not encrypted; the library takes it by position
            return bytes(self._context.wrap(message, False).message)  # noqa: FBT003
        except self._failure as error:
            raise _translate(error, self._purpose) from error


def _refuse(error: Exception, login: KerberosLogin) -> AuthenticationFailed:
    # without a key, the library looks for a ticket, and tells of the cache only
    otherwise = _NO_TICKET if login.keytab is None else _WRONG_KEYTAB
    return _translate(error, f"us as {login.principal or 'the principal of the cache'}", otherwise)


def _translate(
    error: Exception, purpose: str, otherwise: str = "check krb5.conf and the principal"
) -> AuthenticationFailed:
    """Return a failure of the library in our words.

    Args:
        otherwise: Remedy for a message that is not known.
    """
    found = _MINOR.search(str(error)) or _MAJOR.search(str(error))
    said = str(error) if found is None else found[1]
    remedy = next((text for pattern, text in _ADVICE if re.search(pattern, said.lower())), otherwise)
    return AuthenticationFailed(f"Kerberos refuses {purpose}: {said}; {remedy}")
