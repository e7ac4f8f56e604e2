# SPDX-License-Identifier: Apache-2.0
"""The source distribution and the wheels, each installed into a fresh environment, with and without a C compiler.

Not part of ``make test``: each environment downloads the dependencies. ``make package-test`` runs them, and so does
``make full``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.package.wheels import (
    POLICY,
    ROOT,
    build_platform_wheel,
    build_portable,
    copy_sources,
    find_unstripped,
    list_components,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = """\
cluster: {zookeeper: "localhost:2181"}
group: {id: g}
subscriptions: [{topics: [t], sink: out}]
sinks: {out: {type: stdout}}
"""


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="session")
def portable(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution and the wheel in pure Python."""
    return build_portable(sys.executable, sources, tmp_path_factory.mktemp("portable"))


@pytest.fixture(scope="session")
def platform_wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manylinux wheel of this Python."""
    if shutil.which("cc") is None:
        reason = "there is no C compiler: apt-get install build-essential"
        if os.environ.get("CONSUMERD_REQUIRE_TOOLS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return build_platform_wheel(sys.executable, sources, tmp_path_factory.mktemp("platform"))


def test_the_list_of_components_has_each_package_with_its_version(sources: Path, tmp_path: Path) -> None:
    """Whoever looks for a vulnerable release of a dependency reads it there."""
    listed = json.loads(list_components(sys.executable, sources, tmp_path).read_text())
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))

    assert (listed["bomFormat"], listed["metadata"]["component"]["name"]) == ("CycloneDX", "consumerd")
    assert {one["name"]: one["version"] for one in listed["components"]} == pinned


class Environment:
    """A fresh virtual environment, in which nothing of this checkout can be found."""

    def __init__(self, folder: Path, *, compiler: bool) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CONSUMERD_", "PYTHON"))}
        # without a compiler: pip needs no program of the system's
        self._environment: Mapping[str, str] = kept | {
            "PATH": f"{self.bin}:{os.environ['PATH']}" if compiler else str(self.bin)
        }

    def run(self, *command: str, expected: int = 0) -> str:
        """Run a command of the environment; return what it printed."""
        done = subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert expected == done.returncode, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def install(self, package: Path, *extras: str) -> None:
        """Install a file, with the versions that were tested."""
        wanted = f"{package}[{','.join(extras)}]" if extras else str(package)
        constraints = str(ROOT / "constraints.txt")
        self.run("python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", constraints, wanted)

    def check(self) -> dict[str, str]:
        """Check what each installation must be able to do; return the lines of ``consumerd version``."""
        (self.folder / "settings.yaml").write_text(SETTINGS)
        assert "group g at localhost:2181" in self.run("consumerd", "check-config", "--config", "settings.yaml")
        assert "audit" in self.run("consumerd-spark", "--help")
        where = self.run("python", "-c", "import consumerd; print(consumerd.__file__)")
        assert Path(where.strip()).is_relative_to(self.folder)
        lines = self.run("consumerd", "version").splitlines()
        return dict(line.split(": ", 1) for line in lines if ": " in line)


def test_the_source_distribution_with_a_compiler_has_the_kernel(portable: tuple[Path, Path], tmp_path: Path) -> None:
    """All sources of the kernel are in it, headers included."""
    environment = Environment(tmp_path, compiler=True)
    environment.install(portable[0])
    told = environment.check()

    assert told["kernel"].startswith("native (")
    assert told["package"].startswith("wheel cp")
    assert told["package"].endswith("built with the native kernel")


def test_the_source_distribution_without_a_compiler_works_in_pure_python(
    portable: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its wheel does not claim a platform that it does not need."""
    environment = Environment(tmp_path, compiler=False)
    environment.install(portable[0])
    told = environment.check()

    assert told["kernel"].startswith("none, pure Python: not built")
    assert told["package"] == "wheel py3-none-any, built without the native kernel"


def test_the_pure_wheel_says_what_it_is_and_how_an_extra_is_added(portable: tuple[Path, Path], tmp_path: Path) -> None:
    """The command that the message names is run as it stands."""
    environment = Environment(tmp_path, compiler=False)
    environment.install(portable[1])
    told = environment.check()

    assert portable[1].name.endswith("-py3-none-any.whl")
    assert told["package"] == "wheel py3-none-any, built without the native kernel"
    with_parquet = SETTINGS.replace("type: stdout", "type: parquet, path: landed")
    (tmp_path / "parquet.yaml").write_text(with_parquet)
    refused = environment.run("consumerd", "check-config", "--config", "parquet.yaml", expected=2)
    named = re.search(r"pip install '([^']*)'", refused)
    assert named is not None, refused
    environment.run("pip", "install", "-q", "--disable-pip-version-check", named[1])
    assert "group g" in environment.run("consumerd", "check-config", "--config", "parquet.yaml")


def test_the_platform_wheel_needs_no_compiler_for_the_kernel(platform_wheel: Path, tmp_path: Path) -> None:
    """It is what most people want to install."""
    environment = Environment(tmp_path, compiler=False)
    environment.install(platform_wheel)
    told = environment.check()

    assert told["kernel"].startswith("native (")
    assert POLICY in told["package"]
    assert [] == find_unstripped(platform_wheel)


def test_all_packages_have_the_same_files_of_python(portable: tuple[Path, Path], platform_wheel: Path) -> None:
    """They differ in the kernel's objects alone, and none has its sources."""

    def files(wheel: Path) -> set[str]:
        with zipfile.ZipFile(wheel) as package:
            # auditwheel writes entries for folders, too
            return {name for name in package.namelist() if ".dist-info/" not in name and not name.endswith("/")}

    pure, native = files(portable[1]), files(platform_wheel)

    assert pure == {name for name in native if not name.endswith(".so")}
    assert any(name.endswith(".so") for name in native)
    assert [] == sorted(name for name in native if re.search(r"\.(pyx|pxd|h|c)$", name))
