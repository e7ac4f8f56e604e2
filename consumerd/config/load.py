# SPDX-License-Identifier: Apache-2.0
"""Loads settings: reads, merges and checks all sources, and reports every mistake.

Sources in order of precedence, lowest first: built-in defaults, defaults of a container image
(``CONSUMERD_DEFAULT__HTTP__LISTEN``), ``consumer.properties``, the YAML file, the environment
(``CONSUMERD_GROUP__ID``), the command line (``--set group.id=...``). Opens no connection.

Example: the YAML file has ``fetch.max_wait_ms: 100``, the environment has ``CONSUMERD_FETCH__MAX_WAIT_MS=200``: 200 is
in effect, and ``check-config`` names the variable as its origin.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import structlog
from pydantic import BaseModel, ValidationError

from consumerd.config.connector import ConnectorSettings
from consumerd.config.doubts import find_doubts
from consumerd.config.files import find_file_faults
from consumerd.config.inspection import InspectionSettings
from consumerd.config.java_properties import read_properties
from consumerd.config.job import JobSettings
from consumerd.config.origins import Doubt, KeyPath, Layer, Layers, Problem, render_key, select_problems
from consumerd.config.schema import find_elsewhere, find_section, guess, is_secret, list_keys
from consumerd.config.section import MissingKeys, Section, SettingFault, SettingFaults
from consumerd.config.settings import Settings, SinkSettings
from consumerd.config.text_layers import COMMAND_LINE, read_command_line, read_environment, render_variable
from consumerd.config.wording import describe, describe_unknown
from consumerd.config.yaml_layer import read_yaml
from consumerd.errors import ConfigError
from consumerd.sinks.registry import load_sink, sink_types

_OPTIONS: Final[Mapping[tuple[type[BaseModel], KeyPath], str]] = {
    (Settings, ("subscriptions",)): "--topics, --pattern or --blacklist",
    (Settings, ("sinks",)): "--sink with --topics, --pattern or --blacklist",
    (InspectionSettings, ("cluster", "zookeeper")): "--zookeeper CONNECT (without ZooKeeper: --bootstrap HOST:PORT)",
    (JobSettings, ("cluster", "zookeeper")): "--zookeeper CONNECT",
    (JobSettings, ("group", "id")): "--group ID",
}
"""Command-line options for settings that are awkward to give with ``--set``."""
_SECRETS: Final[Mapping[KeyPath, str]] = {
    ("cluster", "zookeeper_auth", "credential"): "credential_file",
    ("cluster", "sasl", "password"): "password_file",
    ("cluster", "zookeeper_sasl", "password"): "password_file",
}
"""Settings that hold a secret, each with the setting that names a file in its place."""
Model = TypeVar("Model", bound=BaseModel)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Settings of a daemon, with their origins and warnings.

    Args:
        layers: Sources of the settings, which tell the origin of each.
        sinks: Options of each sink by its name, in the model of its type.
        doubts: Warnings about settings that are valid but probably not meant.
    """

    settings: Settings
    layers: Layers
    sinks: Mapping[str, BaseModel]
    doubts: Sequence[Doubt]


def load(
    *,
    config: Path | None = None,
    properties: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    extra: Mapping[str, object] | None = None,
    defaults: Layer | None = None,
) -> Loaded:
    """Read, merge and check all settings of a daemon; return them with their origins.

    Of two sources that set a key, the later one in this list wins: defaults, ``properties``, ``config``, environment,
    ``extra``, ``overrides``. Raises ConfigError with one line per mistake.

    Args:
        config: YAML file; None for none.
        properties: A Java consumer's ``consumer.properties``; None for none.
        overrides: Texts ``key=value``, of the option ``--set``.
        environment: Environment variables; None for those of the process.
        extra: Nested values of other command-line options; None for none.
        defaults: Values of a command that win over the built-in defaults only; None for none.
    """
    layers = _read_layers(config, properties, overrides, environment, extra, defaults)
    settings, problems = _merge(Settings, layers)
    # all mistakes are reported together, so sinks are checked even if other settings are invalid
    sinks, wrong = _check_sinks(settings.sinks if settings is not None else _read_sinks(layers), layers)
    problems += wrong
    if settings is not None and not wrong:
        problems += [_render_fault(fault, (), layers) for fault in find_file_faults(settings, sinks)]
    _raise_problems(problems)
    assert settings is not None  # otherwise a problem was raised above
    doubts = [*layers.doubts, *find_doubts(settings, sinks, layers)]
    return Loaded(settings=settings, layers=layers, sinks=sinks, doubts=doubts)


def load_settings(
    *,
    config: Path | None = None,
    properties: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    extra: Mapping[str, object] | None = None,
) -> Settings:
    """Read, merge and check all settings of a daemon, and log warnings about them.

    Arguments are those of :func:`load`. Raises ConfigError with one line per mistake.
    """
    loaded = load(config=config, properties=properties, overrides=overrides, environment=environment, extra=extra)
    log_doubts(loaded.doubts)
    return loaded.settings


def load_inspection_settings(
    *,
    config: Path | None = None,
    properties: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    extra: Mapping[str, object] | None = None,
) -> InspectionSettings:
    """Read, merge and check the settings of a one-shot command.

    Sources and arguments are those of :func:`load`. Raises ConfigError with one line per mistake.
    """
    settings, problems = _merge(InspectionSettings, _read_layers(config, properties, overrides, environment, extra))
    _raise_problems(problems)
    assert settings is not None
    return settings


def read_connector_settings(values: Mapping[str, object]) -> ConnectorSettings:
    """Check the settings of a program that joins a consumer group.

    They are nested values, with the keys of the daemon's YAML file. Files and the environment are not read. Raises
    ConfigError with one line per mistake.
    """
    settings, problems = _merge(ConnectorSettings, Layers([Layer(name="the given settings", values=values)]))
    _raise_problems(problems)
    assert settings is not None
    return settings


def load_job_settings(
    *,
    config: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    extra: Mapping[str, object] | None = None,
) -> JobSettings:
    """Read, merge and check the settings of a pipeline job, and log warnings about them.

    They come from a YAML file, the environment and the command line. Of sections that only the daemon uses, the names
    are checked and the values are not. Raises ConfigError with one line per mistake.

    Args:
        config: YAML file; None for none.
        overrides: Texts ``key=value``, of the option ``--set``.
        environment: Environment variables; None for those of the process.
        extra: Nested values of other command-line options; None for none.
    """
    layers = _read_layers(config, None, overrides, environment, extra)
    settings, problems = _merge(JobSettings, layers)
    unknown = dict.fromkeys(key for layer in layers.ordered for key in layer.values if key not in Settings.model_fields)
    _raise_problems([*(_render_unknown((key,), Settings, layers) for key in unknown), *problems])
    assert settings is not None
    log_doubts(layers.doubts)
    return settings


def log_doubts(doubts: Sequence[Doubt]) -> None:
    """Log each warning about settings."""
    for doubt in doubts:
        _log.warning("settings_doubtful", doubt=doubt.name, reason=doubt.text)


def _read_layers(
    config: Path | None,
    properties: Path | None,
    overrides: Sequence[str],
    environment: Mapping[str, str] | None,
    extra: Mapping[str, object] | None,
    defaults: Layer | None = None,
) -> Layers:
    """Read all sources, and return them in order of precedence, highest first.

    Raises ConfigError for files that cannot be read at all.
    """
    given, image = read_environment(os.environ if environment is None else environment, Settings)
    ordered = [read_command_line(overrides, extra or {}, Settings), given]
    unreadable = []
    for path, read in ((config, read_yaml), (properties, read_properties)):
        try:
            ordered += [] if path is None else [cast("Callable[[Path], Layer]", read)(path)]
        except ConfigError as error:
            unreadable.append(Problem(text=str(error)))
    layers = Layers([*ordered, image, *([] if defaults is None else [defaults])])
    if unreadable:
        _raise_problems([*layers.problems, *unreadable])
    _refuse_secrets(layers)
    return layers


def _merge(model: type[Model], layers: Layers) -> tuple[Model | None, list[Problem]]:
    """Return the merged settings, or None if they are invalid, and all problems found."""

    merged: dict[str, object] = {}
    for layer in reversed(layers.ordered):
        _lay_over(merged, layer.values)
    try:
        return model.model_validate(merged), layers.problems
    except ValidationError as error:
        return None, [*layers.problems, *_explain(error, layers, model=model)]


def _lay_over(merged: dict[str, object], values: Mapping[str, object]) -> None:
    """Overwrite ``merged`` with ``values``, key by key; a list is replaced as a whole."""
    for key, value in values.items():
        below = merged.get(key)
        if isinstance(value, Mapping):
            inner = dict(below) if isinstance(below, Mapping) else {}
            _lay_over(inner, value)
            merged[key] = inner
        else:
            merged[key] = value


def _raise_problems(problems: Sequence[Problem]) -> None:
    if problems:
        raise ConfigError("\n".join(problem.text for problem in select_problems(problems)))


def _read_sinks(layers: Layers) -> dict[str, SinkSettings]:
    """Return the sinks that can be read although the settings as a whole are invalid."""
    merged: dict[str, dict[str, object]] = {}
    for layer in reversed(layers.ordered):
        sinks = layer.values.get("sinks")
        for name, sink in sinks.items() if isinstance(sinks, Mapping) else ():
            if isinstance(sink, Mapping):
                merged.setdefault(name, {}).update(sink)
    read: dict[str, SinkSettings] = {}
    for name, options in merged.items():
        with contextlib.suppress(ValidationError):  # reported already, for the settings as a whole
            read[name] = SinkSettings.model_validate(options)
    return read


def _check_sinks(sinks: Mapping[str, SinkSettings], layers: Layers) -> tuple[dict[str, BaseModel], list[Problem]]:
    """Return each sink's options in the model of its type, and all problems."""
    read: dict[str, BaseModel] = {}
    problems = []
    for name, sink in sinks.items():
        path = ("sinks", name, "type")
        try:
            factory = load_sink(sink.type)
        except ConfigError as error:
            meant = guess(sink.type, sink_types())
            hint = f"; did you mean {meant}?" if meant is not None and meant != sink.type else ""
            problems.append(Problem(text=f"{render_key(path)}: {error}{hint}{layers.locate(path)}"))
            continue
        try:
            read[name] = factory.Options.model_validate(sink.options)
        except ValidationError as error:
            problems += _explain(error, layers, ("sinks", name), factory.Options)
    return read, problems


def _refuse_secrets(layers: Layers) -> None:
    for layer in layers.ordered:
        for secret, file in _SECRETS.items():
            place = layer.find(secret)
            if place is not None and layer.name != "environment":
                raise ConfigError(
                    f"{place}: {render_key(secret)}: secrets come from a file ({file}) or from the environment only"
                )


def _explain(
    error: ValidationError, layers: Layers, prefix: KeyPath = (), model: type[BaseModel] = Settings
) -> list[Problem]:
    """Return pydantic's errors as problems in our own words.

    ``prefix`` is the path of ``model``, if that is the options of a sink.
    """
    problems = []
    items = error.errors(include_url=False)
    for item in items:
        if item["type"] == "too_short" and any(one["loc"][:-1][: len(item["loc"])] == item["loc"] for one in items):
            continue  # pydantic leaves invalid entries out of the count, and they are reported anyway
        location = tuple(part for part in item["loc"] if part != "[key]")
        path = (*prefix, *location)
        faults = item.get("ctx", {}).get("error")
        if isinstance(faults, SettingFaults):
            problems += [_render_fault(fault, path, layers) for fault in faults.found]
        elif item["type"] == "missing" or isinstance(faults, MissingKeys):
            keys = [(*path, key) for key in faults.keys] if isinstance(faults, MissingKeys) else _needed(model, path)
            problems += [
                Problem(
                    text=f"{render_key(needed)}: missing; {_ways(model, needed, layers)}", path=needed, missing=True
                )
                for needed in keys
            ]
        elif item["type"] == "extra_forbidden":
            problems.append(_render_unknown(location, model, layers, prefix))
        else:
            message = describe(cast("Mapping[str, Any]", item), secret=is_secret(model, location))
            problems.append(Problem(text=f"{render_key(path)}: {message}{layers.locate(path)}"))
    return problems


def _render_fault(fault: SettingFault, prefix: KeyPath, layers: Layers) -> Problem:
    paths = [(*prefix, *path) for path in fault.paths]
    return Problem(text=f"{render_key(paths[0])}: {fault.message}{layers.locate(*paths)}")


def _render_unknown(location: KeyPath, model: type[BaseModel], layers: Layers, prefix: KeyPath = ()) -> Problem:
    """Describe an unknown key, and suggest similar keys, also of other sections."""
    path = (*prefix, *location)
    name = str(location[-1])
    known = list_keys(model, location)
    meant = guess(name, known)
    explains: KeyPath | None = None if meant is None else (*path[:-1], meant)
    if explains is None and not prefix:
        explains = find_elsewhere(model, location)
        meant = None if explains is None else render_key(explains)
    if prefix and len(location) == 1:
        known = sorted({*known, *SinkSettings.model_fields})
    text = f"{render_key(path)}: {describe_unknown(name, known, meant)}{layers.locate(path)}"
    return Problem(text=text, explains=() if explains is None else (explains,))


def _needed(model: type[BaseModel], path: KeyPath) -> list[KeyPath]:
    """Return the keys that have to be set because ``path`` is missing.

    For a section, these are its keys without a default.
    """
    field = model.model_fields.get(str(path[0])) if len(path) == 1 else None
    section = find_section(field.annotation) if field is not None else None
    if section is None:
        return [path]
    required = [name for name, inner in section.model_fields.items() if inner.is_required()]
    needed = section.NEEDED if issubclass(section, Section) else ()
    return [(*path, name) for name in (*required, *needed)]


def _find_sinks(layers: Layers) -> list[str]:
    """Return the names of sinks that have a type."""
    given = [sinks for layer in layers.ordered if isinstance(sinks := layer.values.get("sinks"), Mapping)]
    return sorted(
        {str(name) for sinks in given for name, sink in sinks.items() if isinstance(sink, Mapping) and "type" in sink}
    )


def _ways(model: type[BaseModel], path: KeyPath, layers: Layers) -> str:
    """Return a text that explains how a missing key can be set.

    A key of a subscription or sink must be written in its section; others can also come from the environment or the
    command line.
    """
    if len(path) > 2:
        section, name, key = path[0], path[1], path[-1]
        if (section, key) == ("sinks", "path") and layers.find(path[:-1]) == COMMAND_LINE:
            return f"give --sink {name}=FOLDER"
        others = _find_sinks(layers) if path[0] == "sinks" and path[-1] == "type" else []
        other = f", or name a sink that there is: {', '.join(others)}" if others else ""
        return f"write it there{other}{layers.locate(path[:-1])}"
    option = _OPTIONS.get((model, path))
    if model is Settings and option is not None:
        return f"set it in the file, or give {option}"
    ways = f"set it in the file, as {render_variable(path)} in the environment, or with --set {render_key(path)}=..."
    return ways if option is None else f"give {option}, or {ways}"
