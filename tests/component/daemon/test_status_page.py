# SPDX-License-Identifier: Apache-2.0
"""The status page in a real browser: nothing is cut off or pale, on wide and narrow screens, by daylight and in the dark.

One run of headless Chromium opens each state of the daemon in frames of several widths and measures them; the frames'
colour scheme is what the page's media query sees.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from html import unescape
from typing import Any, Final

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from consumerd.daemon.http import make_application, serve
from consumerd.daemon.status import DaemonStatus, EventStatus, Moment, PartitionReport, RebalanceStatus, SinkStatus
from tests.support.tools import require_tool
from tests.unit.daemon.test_status_surface import STATUS, always

WIDTHS: Final = (320, 375, 768, 1280)
SCHEMES: Final = ("light", "dark")
#: what the Web Content Accessibility Guidelines ask of text (1.4.3, level AA)
LEAST_CONTRAST: Final = 4.5

LONG: Final = "web.payments.settlements.europe-west1.audit-trail-of-every-change-v2"
PATH: Final = "/data/landing/topic=orders/partition=4/chain=0/.00000000000001234567.parquet.tmp"


def moment(ago_s: float) -> Moment:
    return Moment(ago_s=ago_s, at="2024-05-01T00:00:00+00:00", timestamp_s=1714521600.0)


def partition(topic: str, number: int, **changes: object) -> PartitionReport:
    one = PartitionReport(
        topic=topic,
        partition=str(number),
        sink="lake",
        state="running",
        reason=None,
        since=moment(7000.0),
        position=9_123_456_789_012 + number,
        acknowledged=9_123_456_789_000,
        committed=9_123_456_780_000,
        high_watermark=9_123_456_799_999,
        lag=10_987 - number,
        lag_seconds=170_000.0,
        records_per_second=123_456.7,
        last_progress=moment(4000.0),
        last_commit=moment(90_000.0),
    )
    return replace(one, **changes)  # type: ignore[arg-type]  # the names are the fields'


WORKING: Final = replace(
    STATUS,
    state="following",
    consumer_id="lake_consumerd-7f9c8d6b5-x2x4q-1600000000000-abcdef12",
    session_id="0x1000a1b2c3d4e5f",
    desired=7,
    owned=7,
    conflicts={},
    partitions=(*(partition("orders", number) for number in range(5)), partition(LONG, 0), partition(LONG, 1)),
    rebalances=(
        RebalanceStatus(
            ago_s=4000.0,
            cause="members changed",
            seconds=0.43,
            phases={"snapshot": 0.01, "drain": 0.12, "release": 0.05, "claim": 0.25},
            gained=7,
            lost=0,
        ),
    ),
    group_partitions=14,
    sinks=(
        SinkStatus(
            sink="lake",
            partitions=7,
            unacknowledged=9_123_456,
            buffered_bytes=123 << 20,
            memory_budget_bytes=256 << 20,
            files=123_456,
            records=9_123_456_789_012,
            bytes=123 << 40,
            last_file=moment(75.0),
            landing_delay_s=59.5,
        ),
        SinkStatus(
            sink="events",
            partitions=0,
            unacknowledged=0,
            buffered_bytes=0,
            memory_budget_bytes=256 << 20,
            files=0,
            records=0,
            bytes=0,
            last_file=None,
        ),
    ),
    events=(EventStatus(ago_s=12.0, kind="sink failed", what=f"{LONG}/1: sink lake"),),
    buffered_bytes={
        "requested": 1 << 20,
        "fetched": 30 << 20,
        "decoding": 5 << 20,
        "batches": 9 << 20,
        "sinks": 40 << 20,
    },
)
TROUBLED: Final = replace(
    WORKING,
    ready=False,
    not_ready=("partitions held by others: 2",),
    problems=(f"{LONG}/1 is stopped: CRC of the message at 9123456789012 is 0x1234abcd, computed 0xdeadbeef",),
    missing_topics=("ordres", LONG),
    disagreements=("lake_java-1: subscribes to other topics: clicks",),
    partitions=(
        partition("orders", 4, state="failing", reason=f"No space left on device: {PATH}", lag=None, committed=None),
        partition(LONG, 1, state="stopped", reason="CRC of the message is 0x1234abcd, computed 0xdeadbeef"),
    ),
)
REBALANCING: Final = replace(
    WORKING,
    ready=False,
    not_ready=("partitions held by others: 2",),
    state="settling",
    owned=5,
    partitions=(partition("orders", 0, state="draining"), partition("orders", 1, state="starting", position=None)),
    conflicts={"orders/3": "lake_other-host-1600000000000-12345678-0", f"{LONG}/0": "lake_another-host-1-12345678-0"},
)
EMPTY: Final = replace(
    STATUS,
    ready=False,
    not_ready=("waiting for ZooKeeper",),
    state="starting",
    consumer_id=None,
    session_phase="none",
    members=0,
    desired=0,
    owned=0,
    partitions=(),
    conflicts={},
    buffered_bytes={},
)
STATES: Final[Mapping[str, DaemonStatus]] = {
    "working": WORKING,
    "troubled": TROUBLED,
    "rebalancing": REBALANCING,
    "empty": EMPTY,
}
CASES: Final = [(state, width, scheme) for state in STATES for width in WIDTHS for scheme in SCHEMES]
SEEN: Final[Mapping[str, tuple[str, ...]]] = {
    "working": (
        "ready",
        "orders/4",
        f"{LONG}/1",
        "9,123,456,789,012",
        "10,987",
        "members changed",
        "snapshot 0.01 s",
        "sink failed",
        "7 of the group's 14 partitions",
        "75 s ago, 2024-05-01T00:00:00+00:00",
        "128,974,848.0",
        "47 h",
        "66 min ago",
        "116 min ago",
        "25 h ago",
    ),
    "troubled": ("not ready", "stopped", "failing", PATH, "0xdeadbeef", "ordres", "lake_java-1", "1 unknown"),
    "rebalancing": (
        "not ready",
        "rebalancing",
        "draining",
        "5 of the group's 14 partitions",
        "lake_other-host-1600000000000-12345678-0",
    ),
    "empty": ("not ready", "waiting for ZooKeeper", "not registered", "none"),
}
"""What each page must show on every screen."""

#: run within the page that holds the frames
MEASURE: Final = """
const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
                     return .2126 * r + .7152 * g + .0722 * b };
const parse = text => text.match(/[\\d.]+/g).map(Number);
function behind(element) {
  for (; element; element = element.parentElement) {
    const colour = parse(getComputedStyle(element).backgroundColor);
    if (colour.length == 3 || colour[3] > 0) return colour.slice(0, 3);
  }
  return [255, 255, 255];
}
function measure(frame) {
  const page = frame.contentDocument, view = frame.contentWindow, width = page.documentElement.clientWidth;
  const texts = [...page.body.querySelectorAll('*')].filter(
    e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()) && e.getClientRects().length);
  const cut = [], pale = [], small = [];
  for (const e of texts) {
    const range = page.createRange(); range.selectNodeContents(e);
    const box = range.getBoundingClientRect();
    if (box.left < -.5 || box.right > width + .5) cut.push(e.textContent);
    for (let p = e; p; p = p.parentElement)
      if (view.getComputedStyle(p).overflowX != 'visible' && p.scrollWidth > p.clientWidth + 1) cut.push(e.textContent);
    const style = view.getComputedStyle(e), pair = [light(parse(style.color).slice(0, 3)), light(behind(e))];
    const contrast = (Math.max(...pair) + .05) / (Math.min(...pair) + .05);
    if (contrast < LEAST) pale.push([e.textContent, contrast]);
    if (parseFloat(style.fontSize) < 11) small.push(e.textContent);
  }
  const cells = [...page.querySelectorAll('td,th,dd')].filter(e => e.getClientRects().length);
  const overlap = cells.filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0).map(e => e.textContent);
  return {width, scrolls: page.documentElement.scrollWidth, cut, pale, small, overlap, text: page.body.innerText,
          back: view.getComputedStyle(page.body).backgroundColor};
}
window.onload = () => {
  const found = {};
  for (const frame of document.querySelectorAll('iframe')) found[frame.name] = measure(frame);
  const out = document.createElement('pre'); out.id = 'found'; out.textContent = JSON.stringify(found);
  document.body.replaceChildren(out);
};
"""


BAD: Final = """<!doctype html><meta charset="utf-8"><body style="margin:0;background:#fff">
<p style="white-space:nowrap">{0}</p><p style="width:5em;overflow:hidden;white-space:nowrap">hidden {0}</p>
<p style="color:#aaa">pale</p><p style="font-size:9px">tiny</p>""".format("too long " * 200)
"""A page with everything that must not be, on which the measure itself is tried."""


def frames() -> str:
    """Return the page that holds every state in every width and scheme, and replaces itself by what it measures."""
    sources = {f"{state} {width} {scheme}": (f"/states/{state}/", width, scheme) for state, width, scheme in CASES}
    sources["bad"] = ("/bad", 375, "light")
    inner = "".join(
        f'<iframe name="{name}" width="{width}" height="900" style="border:0;color-scheme:{scheme}" src="{path}"></iframe>'
        for name, (path, width, scheme) in sources.items()
    )
    script = MEASURE.replace("LEAST", str(LEAST_CONTRAST))
    return f'<!doctype html><meta charset="utf-8"><script>{script}</script><body>{inner}</body>'


def browse(program: str, url: str) -> str:
    """Return the document that Chromium makes of a page."""
    profile = tempfile.mkdtemp(prefix="consumerd-chromium-")
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    try:
        done = subprocess.run(
            [program, *flags, f"--user-data-dir={profile}", "--window-size=1400,1000", "--dump-dom", url],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
    finally:
        shutil.rmtree(profile, ignore_errors=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


async def measure(program: str) -> dict[str, dict[str, Any]]:
    """Serve the pages as a daemon does, and return what the browser found, by frame."""
    application = web.Application()
    for name, status in STATES.items():
        application.add_subapp(f"/states/{name}/", make_application(always(status), CollectorRegistry()))
    for path, text in (("/frames", frames()), ("/bad", BAD)):
        application.router.add_get(path, serving(text))
    async with serve(application, "127.0.0.1", 0) as (host, port):
        document = await asyncio.to_thread(browse, program, f"http://{host}:{port}/frames")
    match = re.search(r'<pre id="found">(.*?)</pre>', document, re.DOTALL)
    assert match is not None, document[:500]
    found: dict[str, dict[str, Any]] = json.loads(unescape(match[1]))
    return found


def serving(text: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=text, content_type="text/html")

    return answer


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, Any]]:
    """What one run of the browser found."""
    return asyncio.run(measure(require_tool("chromium", "chromium")))


@pytest.mark.parametrize(("state", "width", "scheme"), CASES)
def test_the_page_is_whole_and_legible(
    measured: dict[str, dict[str, Any]], state: str, width: int, scheme: str
) -> None:
    """Whoever is called at night looks at it on a phone."""
    found = measured[f"{state} {width} {scheme}"]

    assert found["scrolls"] <= found["width"], "one must scroll sideways"
    assert {key: found[key] for key in ("cut", "pale", "small", "overlap")} == {
        "cut": [],
        "pale": [],
        "small": [],
        "overlap": [],
    }
    assert [text for text in SEEN[state] if text not in found["text"]] == []
    assert ("rebalancing" in found["text"]) == (state == "rebalancing")


@pytest.mark.parametrize("state", STATES)
def test_the_page_is_dark_in_the_dark(measured: dict[str, dict[str, Any]], state: str) -> None:
    """It goes by what the browser asks for."""
    backs = {scheme: {measured[f"{state} {width} {scheme}"]["back"] for width in WIDTHS} for scheme in SCHEMES}
    brightness = {
        scheme: [sum(map(int, re.findall(r"\d+", back)[:3])) for back in found] for scheme, found in backs.items()
    }

    assert max(brightness["dark"]) < 150
    assert min(brightness["light"]) > 600


def test_a_bad_page_is_found_out(measured: dict[str, dict[str, Any]]) -> None:
    """The measure would be worth nothing otherwise."""
    found = measured["bad"]

    assert found["scrolls"] > found["width"]
    assert {text.split()[0] for text in found["cut"]} == {"too", "hidden"}
    assert [text for text, _ in found["pale"]] == ["pale"]
    assert found["small"] == ["tiny"]
