# SPDX-License-Identifier: Apache-2.0
"""The event loop of ``consumerd run``: uvloop if it is installed, otherwise asyncio's own.

The extra ``speed`` installs uvloop; ``CONSUMERD_UVLOOP=off`` in the environment switches it off. Everything works on
both.
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
    """Return uvloop's factory of event loops, or None if ``CONSUMERD_UVLOOP=off`` or it is not installed."""
    found = _import_uvloop()
    if _is_off(environment) or not isinstance(found, ModuleType):
        return None
    new_loop: NewLoop = found.new_event_loop
    return new_loop


def describe_loop(loop: asyncio.AbstractEventLoop) -> str:
    """Return the name of a loop's implementation."""
    found = _import_uvloop()
    if isinstance(found, ModuleType) and isinstance(loop, found.Loop):
        return f"uvloop {found.__version__}"
    return "asyncio"


def explain_loop(environment: Mapping[str, str] = os.environ) -> str:
    """Return a text: the event loop that ``consumerd run`` would use.

    If it is not uvloop, the text has the reason.
    """
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
