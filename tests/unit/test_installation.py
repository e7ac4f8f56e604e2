# SPDX-License-Identifier: Apache-2.0
"""How consumerd was installed, and the command that adds an extra: it names the place that the package came from."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from consumerd.installation import describe_package, install_command, reinstall_command, render_command, render_package

ROOT = Path(__file__).resolve().parents[2]


def noted(path: Path | str, **information: object) -> str:
    """Return a ``direct_url.json`` as pip writes it."""
    return json.dumps({"url": path.as_uri() if isinstance(path, Path) else path, **information})


def test_a_checkout_is_named_by_its_folder(tmp_path: Path) -> None:
    """pip installs a folder, with its extras in brackets."""
    expected = f"pip install '{tmp_path}[spark,java]'"

    assert expected == render_command(("spark", "java"), noted(tmp_path, dir_info={}))


def test_an_editable_checkout_stays_editable(tmp_path: Path) -> None:
    """Without -e the next edit would have no effect."""
    expected = f"pip install -e '{tmp_path}[parquet]'"

    assert expected == render_command(("parquet",), noted(tmp_path, dir_info={"editable": True}))


def test_a_wheel_is_named_by_its_file_whatever_is_in_its_path(tmp_path: Path) -> None:
    """A shell passes it on as one word."""
    wheel = tmp_path / "it's here" / "consumerd-1-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()

    command = render_command(("parquet",), noted(wheel, archive_info={}))

    assert ["pip", "install", f"{wheel}[parquet]"] == shlex.split(command)


def test_a_place_that_is_gone_is_not_named(tmp_path: Path) -> None:
    """An image is built in two stages, of which the first has the checkout."""
    expected = "in a checkout of consumerd, pip install '.[speed]'"

    assert expected == render_command(("speed",), noted(tmp_path / "gone", dir_info={}))


def test_a_repository_is_named_with_its_commit() -> None:
    """The extra is of the same release."""
    direct_url = noted("https://git.example/c.git", vcs_info={"vcs": "git", "commit_id": "abc"})

    assert "pip install 'consumerd[demo] @ git+https://git.example/c.git@abc'" == render_command(("demo",), direct_url)


def test_an_archive_is_named_by_its_address() -> None:
    """It may be on a server of the team's own."""
    direct_url = noted("https://files.example/consumerd-1.tar.gz", archive_info={})

    assert "pip install 'consumerd[demo] @ https://files.example/consumerd-1.tar.gz'" == render_command(
        ("demo",), direct_url
    )


def test_a_package_is_built_again_from_where_it_came_from(tmp_path: Path) -> None:
    """After a compiler was installed: pip would take what it has."""
    options = ("--force-reinstall", "--no-deps")
    place = noted(tmp_path, dir_info={})

    assert f"pip install --force-reinstall --no-deps {tmp_path}" == render_command((), place, *options)
    assert re.search(r"pip install --force-reinstall --no-deps --no-cache-dir \S", reinstall_command())


def test_a_package_of_an_index_is_named_as_such() -> None:
    """pip notes no address for it."""
    assert "pip install 'consumerd[demo]'" == render_command(("demo",), None)


def test_what_pip_has_installed_is_found_behind_what_a_build_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a checkout the working folder is searched first, and has an egg-info without a word on where it came from."""
    left, installed = tmp_path / "checkout", tmp_path / "site-packages"
    for folder, name in ((left, "consumerd.egg-info"), (installed, "consumerd-1.dist-info")):
        (folder / name).mkdir(parents=True)
    (left / "consumerd.egg-info" / "PKG-INFO").write_text("Name: consumerd\nVersion: 1\n")
    (installed / "consumerd-1.dist-info" / "METADATA").write_text("Name: consumerd\nVersion: 1\n")
    (installed / "consumerd-1.dist-info" / "WHEEL").write_text("Tag: py3-none-any\n")
    (installed / "consumerd-1.dist-info" / "direct_url.json").write_text(noted(left, dir_info={"editable": True}))
    monkeypatch.setattr(sys, "path", [str(left), str(installed)])

    assert f"editable, of {left}" == describe_package()
    assert f"pip install -e '{left}[speed]'" == install_command("speed")


def test_a_checkout_that_is_not_installed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs by PYTHONPATH."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    assert "none, a checkout that is not installed" == describe_package()
    assert "in a checkout of consumerd, pip install '.[speed]'" == install_command("speed")


def test_this_environment_has_a_command() -> None:
    """Whatever it was installed from."""
    assert re.search(r"pip install .*\[parquet\]'", install_command("parquet"))


@pytest.mark.parametrize("folder", ["consumerd", "docs", "deploy", "README.md"])
def test_no_message_says_to_install_from_an_index(folder: str) -> None:
    """There is no consumerd on the public index; each message asks install_command."""
    top = ROOT / folder
    files = (
        [top] if top.is_file() else [path for path in top.rglob("*") if path.suffix in {".py", ".md", ".sh", ".yaml"}]
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        if path != ROOT / "consumerd/installation.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"pip install\s+(-\S+\s+)*'?consumerd\[", line)
    ]

    assert [] == found


def test_each_extra_that_a_message_names_exists() -> None:
    """pip only warns of an unknown extra, and installs nothing more."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    calls = [
        match
        for path in (ROOT / "consumerd").rglob("*.py")
        for match in re.findall(
            r"\b(?:install_command|get_java)\(((?:[\"']\w+[\"'](?:, )?)+)\)", path.read_text("utf-8")
        )
    ]
    named = {name for call in calls for name in re.findall(r"\w+", call)}

    assert {"demo", "parquet", "spark", "speed"} <= named
    assert named <= set(extras)


@pytest.mark.parametrize(
    ("wheel", "direct_url", "expected"),
    [
        ("Tag: py3-none-any\n", None, "wheel py3-none-any, built without the native kernel"),
        (
            "Root-Is-Purelib: false\nTag: cp313-cp313-manylinux_2_17_x86_64\nTag: cp313-cp313-manylinux2014_x86_64\n",
            None,
            "wheel cp313-cp313-manylinux_2_17_x86_64, cp313-cp313-manylinux2014_x86_64, built with the native kernel",
        ),
        ("Tag: py3-none-any\n", noted("file:///a%20b", dir_info={"editable": True}), "editable, of /a b"),
        (None, None, "none, a checkout that is not installed"),
    ],
)
def test_a_bug_report_says_which_package_it_is(wheel: str | None, direct_url: str | None, expected: str) -> None:
    """Whoever reads it knows whether a kernel can be there."""
    assert expected == render_package(wheel, direct_url)


def test_this_package_is_described() -> None:
    """Whatever it was installed from."""
    assert re.match("wheel |editable, |none, ", describe_package())
