# SPDX-License-Identifier: Apache-2.0
"""Token and certificate of the HTTP server.

Token
    ``/``, ``/metrics`` and ``/api/v1/status`` need ``Authorization: Bearer TOKEN``. Probes have no secrets, and answer
    without it: ``/livez`` as ever, and ``/readyz`` with its code and one word, since its reasons name topics and hosts.
    The token's file is looked at for each request. While it cannot be used, nothing but the probes is answered.

Certificate
    Its files are looked at every few seconds, and read again if they have changed. New connections have the new
    certificate. Files that cannot be used are told once, and the former certificate goes on.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from consumerd.access.credential_file import CredentialFile
from consumerd.access.secret_file import check_secret_file
from consumerd.errors import ConfigError
from consumerd.net.tls import load_own_certificate
from consumerd.telemetry.hooks import Hooks, Trouble

PROBES: Final = frozenset({"/livez", "/readyz"})
"""Paths that answer without the token."""
_LOOK_S: Final = 10.0
"""Interval, in seconds, at which the certificate's files are looked at."""
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="consumerd"'}


class TokenGuard:
    """Refuses requests without the token.

    Args:
        file: File with the token.
    """

    def __init__(self, file: Path, hooks: Hooks) -> None:
        self._hooks = hooks
        self._credential = CredentialFile("http.token_file", "bearer", file)
        self._told = ""
        self._log = structlog.get_logger(__name__)

    def check(self) -> None:
        """Raise ConfigError if the file cannot be used."""
        self._credential.read()

    def admits(self, request: web.Request) -> bool:
        """Return True if a request has the token."""
        try:
            expected = self._credential.read()
        except ConfigError as error:
            if str(error) != self._told:
                self._told = str(error)
                self._log.error("http_token_unusable", reason=self._told)
                self._hooks.trouble(Trouble.HTTP_TOKEN_UNUSABLE, self._told)
            return False
        self._told = ""
        given = request.headers.getall("Authorization", [])
        # in the same time for every wrong token; a second header is no second try
        return len(given) == 1 and hmac.compare_digest(given[0].encode(errors="replace"), expected.encode())

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer 401 without the token, unless a probe asks."""
        if request.path in PROBES or self.admits(request):
            return await handler(request)
        return web.Response(status=401, headers=_CHALLENGE, text="the token of http.token_file is needed\n")


class ServerCertificate:
    """Certificate and key of the HTTP server.

    Raises ConfigError if the files cannot be used.

    Attributes:
        context: TLS context for the listener.
    """

    def __init__(self, certificate: Path, key: Path, hooks: Hooks) -> None:
        self._hooks = hooks
        self._certificate = certificate
        self._key = key
        self._log = structlog.get_logger(__name__)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._seen = self._mark()
        self._load()

    async def follow(self) -> None:
        """Read the files again when they have changed, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> None:
        """Read the files again if they have changed. Blocks."""
        mark = self._mark()
        if mark == self._seen:
            return
        self._seen = mark
        try:
            self._load()
        except ConfigError as error:
            self._log.error("http_certificate_unusable", reason=str(error))
            self._hooks.trouble(Trouble.HTTP_CERTIFICATE_UNUSABLE, str(error))
        else:
            self._log.info("http_certificate_read", file=str(self._certificate))

    def _load(self) -> None:
        check_secret_file("http.key_file", self._key)
        # tried on a context of its own: a pair that does not fit must not replace the one that serves
        load_own_certificate(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), "http", self._certificate, self._key)
        load_own_certificate(self.context, "http", self._certificate, self._key)

    def _mark(self) -> tuple[object, ...]:
        marks: list[object] = []
        for file in (self._certificate, self._key):
            try:
                found = file.stat()
            except OSError:
                marks.append(None)
            else:
                marks.append((found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode))
        return tuple(marks)
