# SPDX-License-Identifier: Apache-2.0
"""Runs mutants: in a copy of the package, one edit at a time, with the tests that must notice it.

A mutant is *killed* when each test that it names fails by an assertion (or by an exception that it names), and *survives*
when one of them passes: a test beside another one that notices it has proved nothing of itself. It is *broken* when the edit
does not apply any more, or when a test fails for another reason: an import, a name, a type, a fixture.

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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutant import Mutant, StaleMutant

_TOP = Path(__file__).resolve().parents[2]
_KERNEL = Path("consumerd/wire/_kernel")
_COPIED = ("consumerd", "tests", "pyproject.toml", "config.example.yaml")
_SECONDS = 600
_SECONDS_PER_TEST = 20
"""Time for each test of the code as it is, all of which run one after the other; most of them take one or two."""
_ASSERTION = r"assert\b|(?:\w+\.)*(?:AssertionError|Failed|TimeoutError|hypothesis\S*)\b"
"""How the message of a failure begins that a test has asserted; TimeoutError is that of a wait for what should happen."""
_IN_GROUP = re.compile(r"^E?[ |+]*((?:\w+\.)*\w+(?:Error|Exception|Failed|Lost|Range|Missing)\w*)(?::|$)", re.MULTILINE)
"""The exceptions of a group, in its traceback."""


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
        limit_s = _SECONDS + _SECONDS_PER_TEST * len(tests)
        stories = max(m.stories for m in mutants)
        found, output = _run_tests(_copy(Path(folder) / "unchanged"), tests, stories, limit_s=limit_s)
    return None if found is not None and not any(found.values()) else output[-4000:]


def run_mutant(mutant: Mutant, top: Path) -> Verdict:
    """Apply a mutant in a copy, run its tests, and take it back."""
    path = mutant.find_path(top)
    text = path.read_text()
    began = time.monotonic()
    try:
        with _changed(path, text, mutant.edit(text)), _compiled(mutant, top):
            found, output = _run_tests(top, mutant.tests, mutant.stories)
    except StaleMutant as error:
        return Verdict(mutant, Fate.BROKEN, str(error), 0.0)
    except subprocess.CalledProcessError as error:
        return Verdict(mutant, Fate.BROKEN, f"it does not compile: {error.stdout[-600:]}", time.monotonic() - began)
    seconds = time.monotonic() - began
    if found is None:
        return Verdict(mutant, Fate.BROKEN, f"no verdict: {output[-600:]}", seconds)
    fate, detail = judge(mutant, found)
    return Verdict(mutant, fate, detail, seconds)


def judge(mutant: Mutant, found: Mapping[str, Sequence[str]]) -> tuple[Fate, str]:
    """Decide about a mutant by what each of its tests failed of; nothing for one that passed."""
    if missing := [test for test in mutant.tests if test not in found]:
        return Fate.BROKEN, f"there is no {missing[0]}"
    expected = re.compile(f"{_ASSERTION}|{mutant.dies_of}" if mutant.dies_of else _ASSERTION)
    for test in mutant.tests:
        if found[test] and not any(expected.match(reason) for reason in found[test]):
            return Fate.BROKEN, f"{test} fails of something else: {found[test][0][:300]!r}"
    if survived := [test for test in mutant.tests if not found[test]]:
        return Fate.SURVIVED, ", ".join(survived)
    return Fate.KILLED, ", ".join(test.rpartition("::")[2] for test in mutant.tests)


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


def _run_tests(
    top: Path, tests: Sequence[str], stories: int, *, limit_s: float = _SECONDS
) -> tuple[dict[str, list[str]] | None, str]:
    """Run tests within ``limit_s`` seconds; return of what each of them failed, None where there is no telling, and the output."""
    report = top / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--tb=short"]
    environment = os.environ | {
        "PYTHONPATH": str(top),
        "CONSUMERD_SIMULATION_SEEDS": f"0-{max(stories, 1) - 1}",
        # cached bytecode is told by size and seconds, which two edits of a file may have in common
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(
            [*command, f"--junitxml={report}", *tests],
            cwd=top,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"not done within {limit_s} s"
    if done.returncode not in (0, 1) or not report.exists():
        return None, done.stdout  # a file could not be collected, or pytest itself failed
    return find_failures(report.read_text(), tests), done.stdout


def find_failures(report: str, tests: Sequence[str]) -> dict[str, list[str]]:
    """Return of what each of ``tests`` failed, by pytest's report in JUnit's format; those that did not run are missing.

    A reason is an exception with its message. That of a group of exceptions is each of the exceptions in it.
    """
    found: dict[str, list[str]] = {}
    for case in ET.fromstring(report).iter("testcase"):
        file, _, name = f"{case.get('classname')}::{case.get('name')}".partition("::")
        of_class = f"{file.rpartition('.')[2]}::" if file.rpartition(".")[2][:1].isupper() else ""
        for test in tests:
            path, _, wanted = test.partition("::")
            module = path.removesuffix(".py").replace("/", ".")
            here = file in (module, f"{module}.{of_class.removesuffix('::')}")
            if here and wanted in (
                f"{of_class}{name}",
                f"{of_class}{name.partition('[')[0]}",
                of_class.removesuffix("::"),
            ):
                found.setdefault(test, []).extend(_reasons(case))
    return found


def _reasons(case: ET.Element) -> Iterator[str]:
    for error in case.iter("error"):
        yield f"error in a fixture: {error.get('message', '')}"
    for failure in case.iter("failure"):
        message = failure.get("message", "")
        if "ExceptionGroup" in message.partition("\n")[0]:
            yield from (name for name in _IN_GROUP.findall(failure.text or "") if not name.endswith("ExceptionGroup"))
        else:
            yield message
