# SPDX-License-Identifier: Apache-2.0
"""Health check of the container image: asks the daemon in the same container for ``/livez``.

    python -m consumerd.daemon.health

Prints the answer, and exits with 0 for healthy, 1 otherwise. It runs every few seconds, maybe with a small share of a
processor, so it imports little and reads no settings file: the address is that of the environment, and http or https
is found by trying. A probe needs no token.

Source for exit codes and output: Dockerfile reference, section "HEALTHCHECK".
"""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Mapping
from typing import Final

from consumerd.net.address import reachable_host

_VARIABLES: Final = ("CONSUMERD_HTTP__LISTEN", "CONSUMERD_DEFAULT__HTTP__LISTEN")
"""Variables with the daemon's ``http.listen``, the one that wins first."""
_LISTEN: Final = "127.0.0.1:9309"
_OFF: Final = "off"
_PATH: Final = "/livez"
_TIMEOUT_S: Final = 2.0
"""Time limit of each step of a request, in seconds."""


class Unhealthy(Exception):
    """The daemon does not answer as it should; the text says how."""


def check(environment: Mapping[str, str], *, timeout_s: float = _TIMEOUT_S) -> str:
    """Ask the daemon for its health, and return the answer.

    Args:
        environment: Environment of the daemon; it may name the daemon's address.
        timeout_s: Time limit of each step of a request, in seconds.

    Raises Unhealthy.
    """
    listen = next((environment[name] for name in _VARIABLES if environment.get(name)), _LISTEN)
    if listen == _OFF:
        return "http.listen is off: nothing is asked"
    host, _, digits = listen.rpartition(":")
    if not host or not digits.isascii() or not digits.isdigit():
        raise Unhealthy(f"http.listen: expected host:port, got {listen!r}")
    host, port = reachable_host(host.strip("[]")), int(digits)
    try:
        status, said = _ask(http.client.HTTPConnection(host, port, timeout=timeout_s))
    except (ConnectionResetError, BrokenPipeError, http.client.BadStatusLine):
        # a listener with TLS ends a connection that does not begin with a handshake
        status, said = _ask_by_tls(host, port, timeout_s)
    except (OSError, http.client.HTTPException) as error:
        raise Unhealthy(f"http://{host}:{port}{_PATH}: {error}") from error
    if status != http.client.OK:
        raise Unhealthy(f"{host}:{port}{_PATH} answers {status}: {said}")
    return said


def _ask_by_tls(host: str, port: int, timeout_s: float) -> tuple[int, str]:
    import ssl

    # The certificate is not checked, as by a kubelet: the connection does not leave the container, nothing secret is
    # sent, and the answer is one word.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        return _ask(http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context))
    except (OSError, http.client.HTTPException) as error:
        raise Unhealthy(f"{host}:{port}{_PATH}: no answer by http, nor by https: {error}") from error


def _ask(connection: http.client.HTTPConnection) -> tuple[int, str]:
    try:
        connection.request("GET", _PATH, headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read(200).decode(errors="backslashreplace").strip()
    finally:
        connection.close()


def main() -> int:
    """Print the daemon's health, and return the exit code."""
    try:
        said, code = check(os.environ), 0
    except Unhealthy as error:
        said, code = str(error), 1
    sys.stdout.write(f"{said}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
