# SPDX-License-Identifier: Apache-2.0
"""Which event loop ``consumerd run`` runs on: uvloop where it is installed (extra ``speed``), asyncio's own otherwise.

The environment variable ``CONSUMERD_UVLOOP`` switches uvloop off by the value ``off``. Everything works on either.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Final

from consumerd.installation import install_command

SWITCH: Final = "CONSUMERD_UVLOOP"

NewLoop = Callable[[], asyncio.AbstractEventLoop]


def find_uvloop(environment: Mapping[str, str] = os.environ) -> NewLoop | None:
    """Return what makes uvloop's loops, or None where it is switched off or cannot be had: asyncio makes its own then."""
    found = _import_uvloop()
    if _is_off(environment) or not isinstance(found, ModuleType):
        return None
    new_loop: NewLoop = found.new_event_loop
    return new_loop


def describe_loop(loop: asyncio.AbstractEventLoop) -> str:
    """Say which loop this is."""
    found = _import_uvloop()
    if isinstance(found, ModuleType) and isinstance(loop, found.Loop):
        return f"uvloop {found.__version__}"
    return "asyncio"


def explain_loop(environment: Mapping[str, str] = os.environ) -> str:
    """Say which loop ``consumerd run`` would have now, and why it is not uvloop."""
    found = _import_uvloop()
    if _is_off(environment):
        return f"asyncio: {SWITCH}=off"
    if isinstance(found, ModuleType):
        return f"uvloop {found.__version__}"
    if isinstance(found, ModuleNotFoundError):
        return f"asyncio: uvloop is not installed ({install_command('speed')})"
    return f"asyncio: cannot load uvloop: {found}; pip install --force-reinstall uvloop"


def _is_off(environment: Mapping[str, str]) -> bool:
    return environment.get(SWITCH, "").strip().lower() == "off"


def _import_uvloop() -> ModuleType | ImportError:
    try:
        return importlib.import_module("uvloop")
    except ImportError as error:
        return error
