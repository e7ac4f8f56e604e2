"""config.example.yaml documents every setting with its default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml
from pydantic import BaseModel

from consumerd.config.load import load_settings
from consumerd.config.settings import Settings

EXAMPLE = Path(__file__).parents[2] / "config.example.yaml"

#: what an example must give although it is no default
GIVEN = {"cluster.zookeeper", "group.id", "subscriptions", "sinks"}


def settings_with_defaults(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from settings_with_defaults(annotation, f"{key}.")
        elif key not in GIVEN:
            default = field.get_default(call_default_factory=True)
            yield key, list(default) if isinstance(default, tuple) else default


def find(values: object, key: str) -> object:
    for part in key.split("."):
        assert isinstance(values, dict)
        values = values[part]
    return values


def test_the_example_loads() -> None:
    """What we tell people to start from must work."""
    assert load_settings(config=EXAMPLE, environment={}).group.id == "lake"


def test_the_example_shows_every_key_with_its_default() -> None:
    """Documentation that cannot drift."""
    values = yaml.safe_load(EXAMPLE.read_text())
    expected = dict(settings_with_defaults(Settings))
    shown = {key: find(values, key) for key in expected}

    assert expected == shown
