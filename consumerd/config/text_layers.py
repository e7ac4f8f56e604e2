# SPDX-License-Identifier: Apache-2.0
"""Settings from texts: environment variables, defaults of a container image, and ``--set``.

``CONSUMERD_GROUP__ID=lake``
    sets ``group.id``; it wins over settings files.
``CONSUMERD_DEFAULT__HTTP__LISTEN=0.0.0.0:9309``
    sets ``http.listen`` as the default of a container image; settings files win over it.
``--set group.id=lake``
    wins over all other sources.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Final

import yaml
from pydantic import BaseModel

from consumerd.config.origins import Doubt, KeyPath, Layer, Problem, render_key
from consumerd.config.schema import find_elsewhere, guess, is_secret, list_leaves, takes_text

PREFIX: Final = "CONSUMERD_"
IMAGE_PREFIX: Final = "CONSUMERD_DEFAULT__"
COMMAND_LINE: Final = "command line"
"""Origin of values given by options other than ``--set``, which names the key."""
SWITCHES: Final = frozenset({
    # of the program
    "FAIL_POINTS", "JAVA", "JAVA_LACKS", "KERNEL", "UVLOOP",
    # of its build and its tests
    "BRONZE_SEEDS", "COORDINATED_SEEDS", "DRAWN", "DRIVERS_OWN", "FAILURES", "FULL_MATRIX", "GROUP_SEEDS",
    "KAFKA_CACHE", "KILLS", "LEGACY_SEEDS", "REQUIRE_KAFKA", "REQUIRE_KERNEL", "REQUIRE_TOOLS", "RUN", "SCREENSHOTS",
    "SEED", "SIMULATION_SEEDS", "SMOKE_RELEASES", "UNSTABLE", "VERIFICATION", "ZOOKEEPER_OF",
})  # fmt: skip
"""Variables with our prefix that are not settings. A test finds missing ones."""

_OFF_ALONE: Final = frozenset({"KERNEL", "UVLOOP"})
"""Of these, the variables whose only value is ``off``."""

_SERVICE_LINK: Final = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Variables that Kubernetes sets in each pod for a Service named consumerd, such as CONSUMERD_PORT_9309_TCP."""
_CLOSE_VARIABLE: Final = 0.85
"""Similarity from which a variable counts as a misspelling of a setting's variable."""


def render_variable(path: KeyPath) -> str:
    """Return the name of the environment variable that sets a key.

    Example: ``CONSUMERD_GROUP__ID`` for ``("group", "id")``.
    """
    return PREFIX + "__".join(str(part).upper() for part in path)


def read_environment(environment: Mapping[str, str], model: type[BaseModel]) -> tuple[Layer, Layer]:
    """Return the settings of environment variables, and the defaults of a container image.

    The defaults are variables that begin with ``CONSUMERD_DEFAULT__``.

    Args:
        model: Model of all settings.
    """
    given, image = _Texts(model), _Texts(model)
    doubts: list[Doubt] = []
    for variable, text in sorted(environment.items()):
        upper = variable.upper()
        if upper.startswith(IMAGE_PREFIX):
            place = f"environment variable {variable}, a default of the image"
            image.put(tuple(upper.removeprefix(IMAGE_PREFIX).lower().split("__")), text, place)
            continue
        name = upper.removeprefix(PREFIX)
        if name in _OFF_ALONE and text.strip().lower() not in ("", "on", "off"):
            doubts.append(
                Doubt(
                    name="variable-unknown",
                    text=f"environment variable {variable} is ignored: {text!r} is no value of it: write off to switch "
                    "that off, or remove it",
                )
            )
        if name == upper or name in SWITCHES or _SERVICE_LINK.fullmatch(name):
            continue
        parts = tuple(name.lower().split("__"))
        meant = None if parts[0] in model.model_fields else _find_meant(parts, model)
        if parts[0] in model.model_fields or (meant is None and len(parts) > 1):
            given.put(parts, text, f"environment variable {variable}")
        elif meant is None:
            doubts.append(
                Doubt(
                    name="variable-unknown",
                    text=f"environment variable {variable} is ignored: it names no setting "
                    "(CONSUMERD_SECTION__KEY, with two "
                    "underscores between section and key)",
                )
            )
        else:
            given.problems.append(
                Problem(
                    text=f"environment variable {variable}: it names no setting; did you mean "
                    f"{render_variable(meant)}?",
                    explains=(meant,),
                )
            )
    return given.layer("environment", doubts), image.layer("defaults of the image")


def read_command_line(overrides: Sequence[str], extra: Mapping[str, object], model: type[BaseModel]) -> Layer:
    """Return the settings given on the command line.

    Args:
        overrides: Texts ``key=value``, of the option ``--set``.
        extra: Nested values of other options.
        model: Model of all settings.
    """
    texts = _Texts(model, extra)
    for override in overrides:
        key, separator, text = override.partition("=")
        parts = tuple(key.strip().split("."))
        if not separator or not all(parts):
            # the text is not repeated: it may hold a credential
            texts.problems.append(Problem(text=f"--set {key}: expected section.key=value, such as --set group.id=lake"))
            continue
        texts.put(parts, text, f"--set {key.strip()}")
    return texts.layer(COMMAND_LINE)


class _Texts:
    """Collects settings given as texts."""

    def __init__(self, model: type[BaseModel], values: Mapping[str, object] | None = None) -> None:
        self.problems: list[Problem] = []
        self._model = model
        self._values: dict[str, object] = copy.deepcopy(dict(values or {}))
        self._places: dict[tuple[str, ...], str] = {}

    def put(self, path: tuple[str, ...], text: str, place: str) -> None:
        """Add one setting; a mistake in it becomes a problem."""
        if not all(path):
            self.problems.append(Problem(text=f"{place}: expected section and key, such as {PREFIX}GROUP__ID"))
            return
        try:
            value = self._read(path, text)
        except yaml.YAMLError:
            self.problems.append(
                Problem(text=f"{render_key(path)}: the value is not YAML: quote it ({place})", explains=(path,))
            )
            return
        at = self._values
        for part in path[:-1]:
            inner = at.setdefault(part, {})
            if not isinstance(inner, dict):
                self.problems.append(
                    Problem(
                        text=f"{render_key(path)}: {part} is set as a whole already, and cannot have keys ({place})"
                    )
                )
                return
            at = inner
        if self._places.get(path, place) != place and place.startswith("environment"):
            self.problems.append(
                Problem(
                    text=f"{render_key(path)}: set twice, by {self._places[path]} and by {place}: unset one of them"
                )
            )
        at[path[-1]] = value
        self._places[path] = place

    def layer(self, name: str, doubts: Sequence[Doubt] = ()) -> Layer:
        """Return the collected settings."""
        return Layer(name=name, values=self._values, places=self._places, problems=self.problems, doubts=doubts)

    def _read(self, path: tuple[str, ...], text: str) -> object:
        """Parse a value in YAML notation, as in the file. Raises YAMLError.

        Values of text settings stay text, even if YAML would read a number: the group ``42``, the release ``0.10``, the
        password ``u:12``.
        """
        if is_secret(self._model, path):
            return text
        is_text = takes_text(self._model, path)
        try:
            value: object = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):  # ValueError: an impossible date
            if is_text:
                return text
            raise yaml.YAMLError from None
        if is_text:
            return value if isinstance(value, str) or value is None else text
        return value if isinstance(value, (str, bool, int, list, dict, type(None))) else text


def _find_meant(parts: tuple[str, ...], model: type[BaseModel]) -> KeyPath | None:
    """Return the setting that a variable without its section probably means.

    Examples: ``GROUP_ID``, with one underscore; ``ZOOKEEPER`` and ``TLS__CA_FILE``, without their first section.
    """
    if len(parts) > 1:
        return next((path for path in list_leaves(model) if path[-len(parts) :] == parts), None)
    by_name = {render_variable(path).removeprefix(PREFIX): path for path in list_leaves(model)}
    found = guess(parts[0], by_name, cutoff=_CLOSE_VARIABLE)
    return find_elsewhere(model, parts) if found is None else by_name[found]
