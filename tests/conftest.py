# SPDX-License-Identifier: Apache-2.0
"""What all tests share: how property tests are run, that no test's logging is another's, and that nothing dies unseen."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from consumerd.aio.timeouts import timeout
from consumerd.wire import kernel
from tests.support import failures, recorded_run, unseen
from tests.support.pure import without_kernel
from tests.support.seeds import run_seed, some_of

# no test asserts an absolute time: machines are shared, and a slow example is no failure
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# what lands was judged by the same examples; new ones are looked for on developers' machines
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

_TOP = Path(__file__).parents[1]
_WITH_SPARK = "tests/spark/"
_SESSIONS = 2
"""Spark sessions at most in a parallel run, each of a gigabyte. One would keep the run waiting while cores are idle."""

# sessions of tests are many and short: to begin one then takes 15 s of the processor, not 26
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_configure(config: pytest.Config) -> None:
    """Add hooks that have modules of their own, and draw the seed of the run before workers start."""
    run_seed()
    for plugin in (failures, unseen, recorded_run):
        config.pluginmanager.register(plugin)


def pytest_report_header() -> str:
    """Say how to repeat this run."""
    return f"tests that draw a seed: CONSUMERD_SEED={run_seed()}"


class _FilesAndSessions(LoadFileScheduling):
    """Gives files to workers, and files that use the shared Spark session to two of them, each with a session."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return f"{_WITH_SPARK}{_find_session(file)}" if file.startswith(_WITH_SPARK) and _uses_session(file) else file


@functools.cache
def _uses_session(file: str) -> bool:
    return "spark: SparkSession" in (_TOP / file).read_text()


def _find_session(file: str) -> int:
    """Return the number of a file's session: every other file, by name, has the second one."""
    files = sorted(str(one.relative_to(_TOP)) for one in (_TOP / _WITH_SPARK).glob("test_*.py"))
    return [one for one in files if _uses_session(one)].index(file) % _SESSIONS


_MANY_FILES = 5
"""So many files of a run are no choice of a person who works on one of them."""
_SLOW_FIRST = (_WITH_SPARK, "tests/e2e/", "tests/component/", "tests/property/")
"""Folders whose files take long: begun last, one of them would keep the run waiting while the other workers are idle."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run files of slow folders first; within a folder, pytest-randomly's order stays.

    Of the tests marked ``drawn``, a run of folders or of many files has a part; with ``CONSUMERD_DRAWN=all`` it has all.
    """
    files = [one for one in config.args if one.partition("::")[0].endswith(".py")]
    chosen = any("::" in one for one in files) or 0 < len(files) < _MANY_FILES
    if not chosen and os.environ.get("CONSUMERD_DRAWN") != "all":
        _leave_out(config, items)
    items.sort(key=lambda item: next((n for n, one in enumerate(_SLOW_FIRST) if item.nodeid.startswith(one)), 9))


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect functions marked ``drawn``: of each file a third stays, or one in ``parts``; of files with fewer, of the folder.

    Others stay for another seed, and all with the full matrix.
    """
    drawn: dict[tuple[str, int], dict[str, None]] = {}
    for item in items:
        if (marker := item.get_closest_marker("drawn")) is not None:
            group = _name_file(item), marker.kwargs.get("parts", 3)
            drawn.setdefault(group, {})[_name_function(item)] = None
    pooled: dict[tuple[str, int], set[str]] = {}
    for (file, parts), names in drawn.items():
        pool = file if len(names) >= parts else file.rpartition("/")[0]
        pooled.setdefault((pool, parts), set()).update(names)
    staying = {
        name
        for (pool, parts), names in pooled.items()
        for name in some_of(pool, sorted(names), -(-len(names) // parts))
    }
    leaving = {name for names in drawn.values() for name in names} - staying
    left = [item for item in items if _name_function(item) in leaving]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if _name_function(item) not in leaving]


def _name_file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _name_function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """What ``--dist loadfile`` means here."""
    return _FilesAndSessions(config, log) if config.getoption("dist") == "loadfile" else None


_SOONER = 0.9
"""So much of a test's time a coroutine has."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Bound coroutines from within: what pytest-timeout's signal raises in a callback goes to uvloop's exception handler, which
    logs it, and the test would wait for ever.
    """
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        marker = item.get_closest_marker("timeout")
        limit_s = float(marker.args[0] if marker and marker.args else item.config.getini("timeout") or 0)
        if limit_s:
            item.obj = _bounded(item.obj, limit_s * _SOONER)


def _bounded(test: Callable[..., Awaitable[None]], limit_s: float) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def run(*args: object, **kwargs: object) -> None:
        async with timeout(limit_s):
            await test(*args, **kwargs)

    return run


@pytest.fixture(params=["native", "pure"] if kernel.NATIVE else ["pure"])
def each_path(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test with the native kernel, where there is one, and without it: what it says holds either way."""
    with without_kernel() if request.param == "pure" else contextlib.nullcontext():
        yield


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Commands and simulations that run in this process set the logging for all of it."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _nothing_dies_unseen() -> Iterator[None]:
    """A failure that nobody awaits is told when it is collected: by this test, or by one before it."""
    yield
    if found := unseen.UNSEEN.take():
        pytest.fail("nobody heard of this, here or in a test before: " + "; ".join(found))
