# SPDX-License-Identifier: Apache-2.0
"""However a byte stream is cut into reads, the frames are the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from consumerd.net.frames import FrameAssembler
from tests.support.streams import feed

BODIES = st.lists(st.binary(max_size=300) | st.integers(60_000, 140_000).map(bytes), max_size=8)


@given(bodies=BODIES, chunk=st.integers(1, 200_000))
def test_any_cut_gives_the_same_frames(bodies: list[bytes], chunk: int) -> None:
    """The kernel cuts as it likes: in a size, between frames, across the assembler's own buffer."""
    if sum(map(len, bodies)) > 2000:
        chunk = max(chunk, 500)  # byte by byte only where that is quick
    stream = b"".join(len(body).to_bytes(4) + body for body in bodies)

    assert bodies == feed(FrameAssembler(1 << 20), stream, chunk)
