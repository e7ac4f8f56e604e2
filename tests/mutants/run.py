"""Runs mutants: in a copy of the package, one edit at a time, with the tests that must notice it.

A mutant is *killed* when a named test fails by what it asserts or by an error of ours, and *survives* when all pass. It is
*broken* when the edit does not apply any more, or when what fails is the mutant itself: an import, a name, a syntax error.

Edits of the native kernel are compiled, its one part that they concern, in a folder of their own.
"""

from __future__ import annotations

import enum
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutant import Mutant, StaleMutant

_TOP = Path(__file__).resolve().parents[2]
_KERNEL = Path("consumerd/wire/_kernel")
_COPIED = ("consumerd", "tests", "pyproject.toml", "config.example.yaml")
_SECONDS = 300
_NO_VERDICT = re.compile(
    r"\b(ImportError|ModuleNotFoundError|SyntaxError|IndentationError|NameError|UnboundLocalError)\b"
)
"""Failures of the edit itself, not of what it breaks."""


class Fate(enum.Enum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    BROKEN = "BROKEN"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A mutant's fate; ``detail`` names the test that failed, or what is wrong."""

    mutant: Mutant
    fate: Fate
    detail: str
    seconds: float


def run_mutants(mutants: Sequence[Mutant], *, jobs: int) -> Iterator[Verdict]:
    """Run mutants, ``jobs`` at a time, and yield the verdicts in their order."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        places: SimpleQueue[Path] = SimpleQueue()
        for job in range(jobs):
            places.put(_copy(Path(folder) / str(job)))

        def run(mutant: Mutant) -> Verdict:
            place = places.get()
            try:
                return run_mutant(mutant, place)
            finally:
                places.put(place)

        with ThreadPoolExecutor(jobs) as threads:
            yield from threads.map(run, mutants)


def run_unchanged(mutants: Sequence[Mutant]) -> str | None:
    """Run all named tests on the code as it is; return what is wrong if any fails: it would prove nothing."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        failed, output = _run_tests(_copy(Path(folder) / "unchanged"), tests, max(m.stories for m in mutants))
    return None if failed == [] else output[-4000:]


def run_mutant(mutant: Mutant, top: Path) -> Verdict:
    """Apply a mutant in a copy, run its tests, and take it back."""
    path = mutant.find_path(top)
    text = path.read_text()
    began = time.monotonic()
    try:
        with _changed(path, text, mutant.edit(text)), _compiled(mutant, top):
            failed, output = _run_tests(top, mutant.tests, mutant.stories)
    except StaleMutant as error:
        return Verdict(mutant, Fate.BROKEN, str(error), 0.0)
    except subprocess.CalledProcessError as error:
        return Verdict(mutant, Fate.BROKEN, f"it does not compile: {error.stdout[-600:]}", time.monotonic() - began)
    seconds = time.monotonic() - began
    if failed is None:
        return Verdict(mutant, Fate.BROKEN, f"no verdict: {output[-600:]}", seconds)
    if not failed:
        return Verdict(mutant, Fate.SURVIVED, ", ".join(mutant.tests), seconds)
    return Verdict(mutant, Fate.KILLED, ", ".join(sorted({name.partition("[")[0] for name in failed})), seconds)


def _copy(place: Path) -> Path:
    place.mkdir()
    for name in _COPIED:
        source = _TOP / name
        if source.is_dir():
            shutil.copytree(source, place / name)
        else:
            shutil.copy(source, place / name)
    return place


@contextmanager
def _changed(path: Path, before: str, after: str) -> Iterator[None]:
    _write(path, after)
    try:
        yield
    finally:
        _write(path, before)


@contextmanager
def _compiled(mutant: Mutant, top: Path) -> Iterator[None]:
    """Have the mutant's part of the kernel in the copy, and afterwards the one that was there."""
    if not mutant.part:
        yield
        return
    kernel = top / _KERNEL
    (before,) = kernel.glob(f"{mutant.part}{sysconfig.get_config_var('EXT_SUFFIX')}")
    with tempfile.TemporaryDirectory(prefix="kernel-", dir=top) as folder:
        place = Path(folder) / _KERNEL
        place.mkdir(parents=True)
        for source in (kernel / f"{mutant.part}.pyx", *kernel.glob("*.h"), *kernel.glob("*.pxd")):
            shutil.copy(source, place)
        shutil.copy(_TOP / "setup.py", folder)
        subprocess.run(
            [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
            cwd=folder,
            env=os.environ | {"CONSUMERD_REQUIRE_KERNEL": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
        compiled = before.read_bytes()
        # another file under the same name, not the same file with other bytes: somebody may have it mapped
        before.unlink()
        shutil.copy(place / before.name, before)
    try:
        yield
    finally:
        before.unlink()
        before.write_bytes(compiled)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    # compiled code is told from its source by size and whole seconds
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def _run_tests(top: Path, tests: Sequence[str], stories: int) -> tuple[list[str] | None, str]:
    """Run tests; return the names of those that failed, None where there is no telling, and the output."""
    report = top / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "--tb=short"]
    environment = os.environ | {"PYTHONPATH": str(top), "CONSUMERD_SIMULATION_SEEDS": f"0-{max(stories, 1) - 1}"}
    try:
        done = subprocess.run(
            [*command, f"--junitxml={report}", *tests],
            cwd=top,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"not done within {_SECONDS} s"
    if done.returncode == 0:
        return [], done.stdout
    if done.returncode != 1 or not report.exists():
        return None, done.stdout  # nothing was collected, or pytest itself failed
    return _find_failed(report), done.stdout


def _find_failed(report: Path) -> list[str] | None:
    failed = {
        str(case.get("name"))
        for case in ET.parse(report).getroot().iter("testcase")
        for failure in case.iter("failure")
        if not _NO_VERDICT.search(failure.get("message", ""))
    }
    return sorted(failed) or None
