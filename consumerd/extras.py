"""The command that installs an extra into this environment, as far as can be known.

consumerd is not on the public package index, so ``pip install consumerd[parquet]`` works only where it came from an index of
the team's own. pip notes where a package came from in ``direct_url.json`` (PEP 610, packaging.python.org/specifications/direct-url).
The command names that place again: a checkout, a wheel, an archive, or a repository.
"""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit


def install_command(*extras: str) -> str:
    """Return a ``pip install`` command that brings these extras, for a message.

    Where the place that consumerd came from is unknown or gone, the command starts with the words "in a checkout of consumerd".
    """
    try:
        package = distribution("consumerd")
    except PackageNotFoundError:  # a checkout on PYTHONPATH: no package is installed
        return _from_checkout(extras)
    noted = package.read_text("direct_url.json")
    if noted is None and Path(str(package.locate_file("pyproject.toml"))).exists():
        return _from_checkout(extras)  # an egg-info that a build has left in a checkout
    return render_command(extras, noted)


def render_command(extras: tuple[str, ...], direct_url: str | None) -> str:
    """Return the command for a package with this ``direct_url.json``; None is a package of an index."""
    wanted = f"[{','.join(extras)}]"
    if direct_url is None:
        return f"pip install {shlex.quote(f'consumerd{wanted}')}"
    noted = json.loads(direct_url)
    url = str(noted["url"])
    if (repository := noted.get("vcs_info")) is not None:
        source = f"{repository['vcs']}+{url}@{repository['commit_id']}"
        return f"pip install {shlex.quote(f'consumerd{wanted} @ {source}')}"
    parts = urlsplit(url)
    if parts.scheme != "file":
        return f"pip install {shlex.quote(f'consumerd{wanted} @ {url}')}"
    path = Path(unquote(parts.path))
    if not path.exists():  # the first stage of an image, a folder for downloads
        return _from_checkout(extras)
    editable = "-e " if noted.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}{shlex.quote(f'{path}{wanted}')}"


def _from_checkout(extras: tuple[str, ...]) -> str:
    wanted = shlex.quote(f".[{','.join(extras)}]")
    return f"in a checkout of consumerd, pip install {wanted}"
