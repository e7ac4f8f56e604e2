# SPDX-License-Identifier: Apache-2.0
"""Credential for an HTTP endpoint, from a file that may be replaced at any time.

The file is looked at before each request, and read again if it has changed. So a token is rotated by writing the new
one into the file, or by replacing the file (as Kubernetes does with mounted secrets, by a symbolic link).
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Final, Literal

from consumerd.access.secret_file import is_exposed
from consumerd.errors import ConfigError

_MOST_BYTES: Final = 64 << 10
"""Limit of the file's size; servers refuse headers that are much shorter than that."""

CredentialScheme = Literal["bearer", "basic"]


class CredentialFile:
    """A token or a password in a file, as the value of the header ``Authorization``.

    Args:
        setting: Name of the setting that names the file, for error messages.
        scheme: ``bearer``: the file holds a token (RFC 6750). ``basic``: it holds ``user:password`` (RFC 7617).
    """

    def __init__(self, setting: str, scheme: CredentialScheme, file: Path) -> None:
        self._place = f"{setting}: {file}"
        self._scheme = scheme
        self._file = file
        self._seen: tuple[int, ...] = ()
        self._value = ""

    def __repr__(self) -> str:
        return f"CredentialFile({self._place})"

    def read(self) -> str:
        """Return the value of the header ``Authorization``; read the file if it has changed.

        Raises ConfigError if the file cannot be read, if everybody may read it, or if it holds no credential.
        """
        try:
            found = self._file.stat()
            if _mark(found) != self._seen:
                self._read()
        except OSError as error:
            raise ConfigError(f"{self._place} cannot be read: {error.strerror}") from error
        return self._value

    def _read(self) -> None:
        self._seen = ()
        with self._file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            if is_exposed(found.st_mode):
                raise ConfigError(f"{self._place} may be read by everybody: take that right away (chmod o=)")
            content = opened.read(_MOST_BYTES + 1)
        self._value = self._encode(content.strip())
        self._seen = _mark(found)

    def _encode(self, content: bytes) -> str:
        # control characters, among them line ends, would begin another header
        if not content or len(content) > _MOST_BYTES or any(byte < 0x20 or byte == 0x7F for byte in content):
            raise ConfigError(f"{self._place} does not hold one line of text")
        if self._scheme == "basic":
            if b":" not in content:
                raise ConfigError(f"{self._place} does not hold user:password")
            return f"Basic {base64.b64encode(content).decode()}"
        if not content.isascii() or b" " in content:
            raise ConfigError(f"{self._place} does not hold a token: expected ASCII without spaces")
        return f"Bearer {content.decode()}"


def _mark(found: os.stat_result) -> tuple[int, ...]:
    # the mode, too: a file that everybody may read is refused, and accepted again after chmod
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode
