# SPDX-License-Identifier: Apache-2.0
"""Files that hold a secret: passwords, and Kerberos keys.

A file that every user of the host can read holds no secret, so it is refused. Its group may read it: that is how a
service gets a file that root owns.
"""

from __future__ import annotations

import stat
from pathlib import Path

from consumerd.errors import ConfigError


def is_exposed(mode: int) -> bool:
    """Return True if everybody on the host may read or write the file."""
    return bool(mode & (stat.S_IROTH | stat.S_IWOTH))


def find_secret_fault(path: Path) -> str | None:
    """Return why a file cannot hold a secret; None if it can, or is missing."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    if is_exposed(mode):
        return f"{path} can be read by everybody (mode {stat.S_IMODE(mode):04o}): chmod o= {path}"
    return None


def check_secret_file(setting: str, path: Path) -> None:
    """Raise ConfigError if a file cannot be read, or everybody can read it.

    The message begins with ``setting``.
    """
    if (fault := find_secret_fault(path)) is not None:
        raise ConfigError(f"{setting}: {fault}")
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read: {error.strerror}") from error


def read_password(setting: str, path: Path) -> str:
    """Return the password in a file, without one line end behind it.

    Raises ConfigError, which begins with ``setting`` and never holds the content.
    """
    check_secret_file(setting, path)
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{setting}: {path}: expected UTF-8, byte {error.start} is not") from None
    password = text.removesuffix("\n").removesuffix("\r")
    if not password:
        raise ConfigError(f"{setting}: {path} is empty")
    return password
