# SPDX-License-Identifier: Apache-2.0
"""config.example.yaml documents every setting with its default."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from consumerd.cli.main import main
from consumerd.config.load import load_settings
from consumerd.config.settings import Settings
from consumerd.config.text_layers import SWITCHES

EXAMPLE = Path(__file__).parents[2] / "config.example.yaml"

#: what an example must give although it is no default
GIVEN = {"cluster.zookeeper", "group.id", "subscriptions", "sinks"}


def test_the_command_prints_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    """An installation has no checkout to look into."""
    assert 0 == main(["config", "example"])
    assert EXAMPLE.read_text() == capsys.readouterr().out


def test_a_build_puts_the_file_into_the_package(tmp_path: Path) -> None:
    """One file in the repository; wheels, and images made of them, have a copy."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "config.example.yaml"):
        shutil.copy(EXAMPLE.parent / name, tmp_path / name)
    package = tmp_path / "consumerd"
    package.mkdir()
    (package / "__init__.py").write_text("")
    built = tmp_path / "built"
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(built)]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=50)

    assert EXAMPLE.read_text() == (built / "consumerd" / "config.example.yaml").read_text()


def test_every_variable_of_the_prefix_is_a_setting_or_a_known_switch() -> None:
    """Whoever runs our tests, or builds the package, must not be warned of our own variables."""
    files = [
        path
        for folder in ("consumerd", "tests", "bench", ".ci", "deploy")
        for path in (EXAMPLE.parent / folder).rglob("*")
        if path.suffix in {".py", ".sh", ""} and path.is_file() and path.name != "test_typical_mistakes.py"
    ]
    texts = [
        path.read_text(errors="replace") for path in (*files, EXAMPLE.parent / "Makefile", EXAMPLE.parent / "setup.py")
    ]
    named = {
        name for text in texts for name in re.findall(r"""["'${( ]CONSUMERD_([A-Z][A-Z_]*[A-Z])(?=["'=}: )])""", text)
    }
    switches = {name for name in named if "__" not in name and name.lower() not in Settings.model_fields}

    assert SWITCHES == switches


def settings_with_defaults(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from settings_with_defaults(annotation, f"{key}.")
        elif key not in GIVEN:
            default = field.get_default(call_default_factory=True)
            yield key, list(default) if isinstance(default, tuple) else default


MISSING = "missing in config.example.yaml: write it there, with its default and a comment"


def find(values: object, key: str) -> object:
    for part in key.split("."):
        assert isinstance(values, dict)
        if part not in values:
            return MISSING
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
