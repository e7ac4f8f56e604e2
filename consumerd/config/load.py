"""Where settings come from, and errors that name the key and its place.

Later wins: defaults, ``consumer.properties``, the YAML file, the environment (``CONSUMERD_GROUP__ID``), command line
(``--set group.id=...``). Opens no connection.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import structlog
import yaml
from pydantic import BaseModel, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsError,
)

from consumerd.config.java_properties import read_properties
from consumerd.config.job import JobSettings
from consumerd.config.settings import InspectionSettings, Settings, SinkSettings
from consumerd.errors import ConfigError
from consumerd.sinks.registry import load_sink

PREFIX: Final = "CONSUMERD_"
KeyPath = tuple[str | int, ...]
_OPTIONS: Final[Mapping[tuple[type[BaseModel], KeyPath], str]] = {
    (Settings, ("subscriptions",)): "--topics, --pattern or --blacklist",
    (Settings, ("sinks",)): "--sink with --topics, --pattern or --blacklist",
    (InspectionSettings, ("cluster", "zookeeper")): "--zookeeper CONNECT",
    (JobSettings, ("cluster", "zookeeper")): "--zookeeper CONNECT",
    (JobSettings, ("group", "id")): "--group ID",
}
"""Options of the command line that set what nobody would give with ``--set``, or that are shorter."""
Model = TypeVar("Model", bound=BaseSettings)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One origin of settings: nested values, how to say where a key stands in it, and keys that are passed over."""

    name: str
    values: Mapping[str, object]
    places: Mapping[KeyPath, str]
    unknown: tuple[str, ...] = ()

    def find_place(self, path: KeyPath) -> str | None:
        """Return where ``path`` (or what contains it) is set here, or None."""
        value: object = self.values
        for part in path:
            if isinstance(value, Mapping) and part in value:
                value = value[part]
                continue
            if not isinstance(value, list) or not isinstance(part, int) or part >= len(value):
                return None
            value = value[part]
        below = next((place for known, place in self.places.items() if known[: len(path)] == path), None)
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path) or below or self.name


def load_settings(
    *,
    config: Path | None = None,
    properties: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    extra: Mapping[str, object] | None = None,
) -> Settings:
    """Read, merge and check all settings of a daemon.

    ``overrides`` are ``key=value`` texts, ``extra`` nested values of the command line; ``environment`` is the process's
    unless given. Raises ConfigError with one line for each thing that is wrong.
    """
    sources = _sources(config, properties, overrides, environment, extra)
    for source in sources:
        if source.unknown:
            reason = "neither consumerd nor Kafka's high-level consumer has such keys: they are ignored, as Java does"
            _log.warning("properties_unknown", file=source.name, keys=list(source.unknown), reason=reason)
    try:
        settings = _merge(Settings, sources)
    except ConfigError as error:
        # a person mends all of it at once
        problems = _find_sink_problems(_read_sinks(sources), sources)
        raise ConfigError("\n".join([str(error), *problems])) from None
    if problems := _find_sink_problems(settings.sinks, sources):
        raise ConfigError("\n".join(problems))
    return settings


def load_inspection_settings(
    *,
    config: Path | None = None,
    properties: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    extra: Mapping[str, object] | None = None,
) -> InspectionSettings:
    """Read what a one-shot command needs, from the same sources. Raises ConfigError."""
    return _merge(InspectionSettings, _sources(config, properties, overrides, environment, extra))


def load_job_settings(
    *,
    config: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    extra: Mapping[str, object] | None = None,
) -> JobSettings:
    """Read what a job of the pipeline needs, from the same sources.

    Of the daemon's sections that it does not need only the names are looked at. Raises ConfigError.
    """
    sources = _sources(config, None, overrides, environment, extra)
    known = sorted(Settings.model_fields)
    unknown = [
        f"{key}: unknown key; there is {', '.join(known)}{_place((key,), sources)}"
        for source in sources
        for key in source.values
        if key not in Settings.model_fields
    ]
    if unknown:
        raise ConfigError("\n".join(dict.fromkeys(unknown)))
    return _merge(JobSettings, sources)


def _sources(
    config: Path | None,
    properties: Path | None,
    overrides: Sequence[str],
    environment: Mapping[str, str] | None,
    extra: Mapping[str, object] | None,
) -> list[Source]:
    """Return the sources, the one that wins first."""
    sources = [_command_line(overrides, extra or {}), _environment(os.environ if environment is None else environment)]
    if config is not None:
        sources.append(_yaml_file(config))
    if properties is not None:
        found = read_properties(properties)
        sources.append(Source(name=str(properties), values=found.settings, places={}, unknown=found.unknown))
    _refuse_secrets(sources)
    return sources


def _merge(model: type[Model], sources: Sequence[Source]) -> Model:
    def customise(
        _cls: type[BaseSettings], settings_cls: type[BaseSettings], /, *_own: object, **_more: object
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return tuple(InitSettingsSource(settings_cls, dict(source.values)) for source in sources)

    # the library merges the sources key by key; ours stand in for its own, which have no places to name
    merged = cast("type[Model]", type(model.__name__, (model,), {"settings_customise_sources": classmethod(customise)}))
    try:
        return merged()
    except ValidationError as error:
        raise ConfigError("\n".join(_lines(error, sources, model=model))) from None
    except SettingsError as error:
        raise ConfigError(str(error)) from None


def _read_sinks(sources: Sequence[Source]) -> dict[str, SinkSettings]:
    """Return the sinks as far as they can be read where the settings as a whole cannot."""
    merged: dict[str, dict[str, object]] = {}
    for source in reversed(sources):
        sinks = source.values.get("sinks")
        for name, sink in sinks.items() if isinstance(sinks, Mapping) else ():
            if isinstance(sink, Mapping):
                merged.setdefault(name, {}).update(sink)
    read: dict[str, SinkSettings] = {}
    for name, options in merged.items():
        with contextlib.suppress(ValidationError):  # told already, of the settings as a whole
            read[name] = SinkSettings.model_validate(options)
    return read


def _find_sink_problems(sinks: Mapping[str, SinkSettings], sources: Sequence[Source]) -> list[str]:
    """Return what is wrong with each sink's options by its type's own model."""
    problems = []
    for name, sink in sinks.items():
        try:
            factory = load_sink(sink.type)
        except ConfigError as error:
            problems.append(f"sinks.{name}.type: {error}{_place(('sinks', name, 'type'), sources)}")
            continue
        try:
            factory.Options.model_validate(sink.options)
        except ValidationError as error:
            problems += _lines(error, sources, ("sinks", name), factory.Options)
    return problems


def _command_line(overrides: Sequence[str], extra: Mapping[str, object]) -> Source:
    values: dict[str, object] = dict(extra)
    places: dict[KeyPath, str] = {}
    for text in overrides:
        key, separator, value = text.partition("=")
        parts = tuple(key.split("."))
        if not separator or not all(parts):
            raise ConfigError(f"--set {text}: expected section.key=value")
        _put(values, parts, _scalar(value, f"--set {text}"), f"--set {text}")
        places[parts] = f"--set {key}"
    return Source(name="command line", values=values, places=places)


def _environment(environment: Mapping[str, str]) -> Source:
    """Read ``CONSUMERD_A__B``. A variable with a double underscore that names no key is refused; others of the prefix
    are not settings (``CONSUMERD_KAFKA_CACHE`` belongs to the tests) unless they name a section.
    """
    values: dict[str, object] = {}
    places: dict[KeyPath, str] = {}
    known = EnvSettingsSource(Settings, env_prefix=PREFIX, env_nested_delimiter="__").settings_cls.model_fields
    for variable, text in sorted(environment.items()):
        if not variable.upper().startswith(PREFIX):
            continue
        parts = tuple(part.lower() for part in variable[len(PREFIX) :].split("__"))
        if len(parts) == 1 and parts[0] not in known:
            continue
        _put(values, parts, _scalar(text, variable), variable)
        places[parts] = f"environment variable {variable}"
    return Source(name="environment", values=values, places=places)


def _scalar(text: str, where: str) -> object:
    """Read a value as YAML would, so that numbers, lists and booleans are written as in the file."""
    try:
        value: object = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"{where}: the value is not YAML; quote it") from None
    # a release such as 1.1 or 0.10 is text, and so is all else that YAML would make a float or a date
    return value if isinstance(value, (str, bool, int, list, dict, type(None))) else text


def _put(values: dict[str, object], parts: tuple[str, ...], value: object, where: str) -> None:
    for part in parts[:-1]:
        inner = values.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{where}: {part} is set as a whole already")
        values = inner
    values[parts[-1]] = value


def _yaml_file(path: Path) -> Source:
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values: Any = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}") from None
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected sections (cluster:, group:, ...), got {type(values).__name__}")
    places: dict[KeyPath, str] = {}
    if node is not None:
        _mark(node, (), str(path), places)
    return Source(name=str(path), values=values, places=places)


def _mark(node: yaml.Node, path: KeyPath, file: str, places: dict[KeyPath, str]) -> None:
    """Remember the line of every key."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, key.value)
            places[inner] = f"{file}, line {key.start_mark.line + 1}"
            _mark(value, inner, file, places)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            inner = (*path, index)
            places[inner] = f"{file}, line {value.start_mark.line + 1}"
            _mark(value, inner, file, places)


def _refuse_secrets(sources: Sequence[Source]) -> None:
    path = ("cluster", "zookeeper_auth", "credential")
    for source in sources:
        place = source.find_place(path)
        if place is not None and source.name != "environment":
            raise ConfigError(
                f"{place}: {'.'.join(path)}: secrets come from a file (credential_file) or from the environment only"
            )


def _place(path: KeyPath, sources: Sequence[Source]) -> str:
    """Say where ``path`` is set; of the settings as a whole, which are everywhere, nothing."""
    for source in sources:
        place = source.find_place(path) if path else None
        if place is not None:
            return f" ({place})"
    return ""


def _lines(
    error: ValidationError, sources: Sequence[Source], prefix: KeyPath = (), model: type[BaseModel] = Settings
) -> list[str]:
    lines = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        path = (*prefix, *item["loc"])
        if item["type"] == "missing":
            lines += [f"{_key(needed)}: missing; {_ways(model, needed)}" for needed in _needed(model, path)]
            continue
        key = _key(path)
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = f"unknown key; there is {', '.join(_siblings(model, item['loc']))}"
        lines.append(f"{key}: {message}{_place(path, sources)}")
    return lines


def _key(path: KeyPath) -> str:
    return ".".join(str(part) for part in path) or "settings"


def _needed(model: type[BaseModel], path: KeyPath) -> list[KeyPath]:
    """Return what must be set where ``path`` is missing: of a section its keys without a default."""
    field = model.model_fields.get(str(path[0])) if len(path) == 1 else None
    section = field.annotation if field is not None else None
    if not isinstance(section, type) or not issubclass(section, BaseModel):
        return [path]
    return [(*path, name) for name, inner in section.model_fields.items() if inner.is_required()]


def _ways(model: type[BaseModel], path: KeyPath) -> str:
    """Say how a missing key can be set."""
    option = _OPTIONS.get((model, path))
    if model is Settings and option is not None:
        return f"set it in the file, or give {option}"
    ways = f"set it in the file, as {_variable(path)} in the environment, or with --set {_key(path)}=..."
    return ways if option is None else f"give {option}, or {ways}"


def _variable(path: KeyPath) -> str:
    return PREFIX + "__".join(str(part).upper() for part in path)


def _siblings(model: type[BaseModel], location: KeyPath) -> list[str]:
    """Return the keys that exist beside an unknown one."""
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        annotation = field.annotation if field is not None else None
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        inner = next((item for item in candidates if isinstance(item, type) and issubclass(item, BaseModel)), None)
        if inner is None:
            continue
        model = inner
    return sorted(model.model_fields)
