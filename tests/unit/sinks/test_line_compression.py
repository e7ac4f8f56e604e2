# SPDX-License-Identifier: Apache-2.0
"""Compressed JSON lines: what is in the files, what is held in memory, and what a reader makes of damage."""

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import zstandard

from consumerd.errors import ConfigError
from consumerd.landing.line_compression import COMPRESSOR_BYTES, LineCompression, compress_lines, open_lines
from consumerd.sinks import jsonl
from consumerd.sinks.base import Start
from tests.support.clocks import ManualClock
from tests.support.sinks import SinkRig, run_of

KINDS: dict[str, LineCompression] = {"jsonl.gz": "gzip", "jsonl.zst": "zstd"}


@pytest.fixture(params=list(KINDS))
async def rig(request: pytest.FixtureRequest, tmp_path: Path):
    rig = SinkRig(kind=request.param, path=tmp_path / "landing", clock=ManualClock(), roll_bytes=64 << 20)
    yield rig
    await rig.close()


def data_files(rig: SinkRig) -> list[Path]:
    return sorted(rig.path.rglob(f"0*.{rig.kind}"))


def unpack(path: Path) -> bytes:
    """Decompress as any other program would."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as frames:
        return frames.read()


async def test_lines_are_those_that_are_not_compressed(rig: SinkRig, tmp_path: Path):
    """Compression changes nothing but the bytes around them."""
    plain = SinkRig(kind="jsonl", path=tmp_path / "plain", clock=ManualClock())
    for one in (rig, plain):
        writer = await one.writer()
        await writer.write(run_of(0, 3000, size=1000))
        assert await writer.flush() == 3000
    await plain.close()

    (packed,), (straight,) = data_files(rig), data_files(plain)
    assert unpack(packed) == straight.read_bytes()
    assert packed.stat().st_size < straight.stat().st_size / 5
    assert rig.offsets() == list(range(3000))


async def test_lines_are_collected_within_what_is_charged(rig: SinkRig):
    """A member of 1 MiB is written at once; less waits, charged, until the file ends. No compressor stays open."""
    writer = await rig.writer()
    threads = rig.charged
    await writer.write(run_of(0, 100, size=1000))
    threads = 4 * (COMPRESSOR_BYTES[KINDS[rig.kind]] + jsonl.MEMBER_BYTES)
    assert 100_000 < rig.charged - threads < 130_000
    await writer.write(run_of(100, 2000, size=1000))
    assert rig.charged - threads < jsonl.MEMBER_BYTES
    assert await writer.flush() == 2000
    assert rig.charged == threads

    await rig.close()
    assert rig.charged == 0


async def test_lines_that_wait_are_compressed_when_memory_is_wanted(tmp_path: Path):
    """Many partitions with little each must not hold more than the sink's part of the budget."""
    rig = SinkRig(kind="jsonl.zst", path=tmp_path / "landing", clock=ManualClock(), buffer_bytes=50_000)
    writer = await rig.writer()
    for start in range(0, 400, 40):
        await writer.write(run_of(start, start + 40, size=1000))
        waiting = rig.charged - 4 * (COMPRESSOR_BYTES["zstd"] + jsonl.MEMBER_BYTES)
        assert waiting < 50_000 + 45_000
    assert await writer.flush() == 400
    assert rig.offsets() == list(range(400))
    await rig.close()


async def test_file_without_records_is_a_file_of_its_kind(rig: SinkRig):
    """Programs call an empty .gz cut off; seals and gaps make such files."""
    writer = await rig.writer()
    await writer.write(run_of(0, 5))
    await writer.flush()
    again = await rig.member().open(rig.claim())
    await again.start(Start(position=0, reason="request", new_chain=True, request_id="r"))
    seal = data_files(rig)[-1]
    assert seal.stat().st_size > 0
    assert unpack(seal) == b""
    assert rig.landing().problems == []


@pytest.mark.skipif(shutil.which("gzip") is None, reason="needs gzip")
def test_gzip_itself_reads_members_behind_each_other(tmp_path: Path):
    """Not only libraries."""
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(b"".join([*compress_lines("gzip", [b"a\n", b"b\n"]), *compress_lines("gzip", [b"c\n"])]))
    done = subprocess.run(["gzip", "-dc", path], capture_output=True, check=True)
    assert done.stdout == b"a\nb\nc\n"


@pytest.mark.parametrize(("extension", "compression"), KINDS.items())
def test_members_are_read_as_one_stream(tmp_path: Path, extension: str, compression: LineCompression):
    """However much is asked for at a time."""
    path = tmp_path / "x"
    path.write_bytes(
        b"".join(part for line in (b"a\n" * 5000, b"", b"b\n") for part in compress_lines(compression, [line]))
    )
    with path.open("rb") as file:
        lines = open_lines(file, extension)
        read = b""
        while piece := lines.read(700):
            read += piece
    assert read == b"a\n" * 5000 + b"b\n"


def test_memory_of_a_compressor_is_what_is_charged():
    """zstd says itself what it takes; it must not grow with a release unnoticed."""
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
    frame = compressor.compressobj(size=jsonl.MEMBER_BYTES)
    frame.compress(b"x" * jsonl.MEMBER_BYTES)
    frame.flush()
    assert 0.5 * COMPRESSOR_BYTES["zstd"] < compressor.memory_size() <= COMPRESSOR_BYTES["zstd"]


async def test_another_compression_needs_another_path(rig: SinkRig):
    """One chain, one kind of file: its names say where the next one goes."""
    writer = await rig.writer()
    await writer.write(run_of(0, 5))
    await writer.flush()
    rig.kind = "jsonl"
    with pytest.raises(ConfigError, match=r"holds \.jsonl\.\w+ files and this sink writes \.jsonl: give the sink"):
        await rig.member().open(rig.claim())


async def test_metadata_is_of_the_file_as_it_is(rig: SinkRig):
    """Whoever copies files compares sizes and digests, and unpacks nothing."""
    writer = await rig.writer()
    await writer.write(run_of(0, 5))
    await writer.flush()
    (meta,) = rig.path.rglob("_meta/*.json")
    (path,) = data_files(rig)
    assert json.loads(meta.read_bytes())["size"] == path.stat().st_size
