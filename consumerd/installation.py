# SPDX-License-Identifier: Apache-2.0
"""The installation of this package, and the command that adds an extra to it.

consumerd is not on the public package index, so ``pip install consumerd[parquet]`` works only with an index of the
team's own. pip records the origin of a package (a checkout, a wheel, an archive or a repository) in ``direct_url.json``
(PEP 610). The command to add an extra installs from this origin again.
"""

from __future__ import annotations

import json
import shlex
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_REINSTALL: Final = ("--force-reinstall", "--no-deps", "--no-cache-dir")
"""Options with which pip builds the package again, and leaves all others as they are."""


def install_command(*extras: str) -> str:
    """Return a ``pip install`` command that adds these extras, for a message.

    If the origin of the package is unknown or gone, the text begins with "in a checkout of consumerd".
    """
    return render_command(extras, _find_direct_url())


def reinstall_command() -> str:
    """Return a ``pip install`` command that rebuilds the package from its origin, for a message."""
    return render_command((), _find_direct_url(), *_REINSTALL)


def describe_package() -> str:
    """Return a description of the installed package, for bug reports.

    It is a wheel with or without the native kernel, or a checkout.
    """
    package = _find_package()
    if package is None:
        return "none, a checkout that is not installed"
    return render_package(package.read_text("WHEEL"), package.read_text("direct_url.json"))


def render_package(wheel: str | None, direct_url: str | None) -> str:
    """Return the description of an installed package, from its metadata files.

    Args:
        wheel: Content of ``WHEEL``; None without the file.
        direct_url: Content of ``direct_url.json``; None without the file.
    """
    noted = json.loads(direct_url or "{}")
    if noted.get("dir_info", {}).get("editable"):
        return f"editable, of {unquote(urlsplit(noted['url']).path)}"
    tags = [line.partition(":")[2].strip() for line in (wheel or "").splitlines() if line.startswith("Tag:")]
    if not tags:
        return "none, a checkout that is not installed"
    if tags == ["py3-none-any"]:
        return "wheel py3-none-any, built without the native kernel"
    return f"wheel {', '.join(tags)}, built with the native kernel"


def render_command(extras: tuple[str, ...], direct_url: str | None, *options: str) -> str:
    """Return a ``pip install`` command that adds extras to a package.

    Args:
        extras: Names of the extras.
        direct_url: Content of the package's ``direct_url.json``; None for a package of an index, "{}" for an unknown
            origin.
        options: Options of pip.
    """
    wanted = f"[{','.join(extras)}]" if extras else ""
    command = " ".join(("pip install", *options))
    if direct_url is None:
        return f"{command} {shlex.quote(f'consumerd{wanted}')}"
    noted = json.loads(direct_url)
    url = str(noted.get("url", ""))
    parts = urlsplit(url)
    if (repository := noted.get("vcs_info")) is not None:
        source = f"{repository['vcs']}+{url}@{repository['commit_id']}"
        return f"{command} {shlex.quote(f'consumerd{wanted} @ {source}')}"
    if parts.scheme not in {"", "file"}:
        return f"{command} {shlex.quote(f'consumerd{wanted} @ {url}')}"
    path = Path(unquote(parts.path))
    if not url or not path.exists():  # an origin that is gone, such as the first stage of an image
        return f"in a checkout of consumerd, {command} {shlex.quote(f'.{wanted}')}"
    editable = "-e " if noted.get("dir_info", {}).get("editable") else ""
    return f"{command} {editable}{shlex.quote(f'{path}{wanted}')}"


def _find_direct_url() -> str | None:
    package = _find_package()
    return "{}" if package is None else package.read_text("direct_url.json")


def _find_package() -> Distribution | None:
    """Return the package that pip has installed, or None.

    An egg-info that a build leaves in a checkout may come first, and is skipped.
    """
    return next((one for one in distributions(name="consumerd") if one.read_text("WHEEL") is not None), None)
