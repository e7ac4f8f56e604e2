# SPDX-License-Identifier: Apache-2.0
"""What set-up has downloaded is read from pip's log, whatever form its lines have."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.demo.downloads import find_downloads

LOG = """\
2026-01-02T03:04:05,006 Collecting pyspark<5,>=4.2
2026-01-02T03:04:05,006   Downloading pyspark-4.3.0.tar.gz (434.2 MB)
2026-01-02T03:04:05,006   Downloading https://index.invalid/packages/ab/cd/rich-15.0.0-py3-none-any.whl (310 kB)
2026-01-02T03:04:05,006   Downloading https://index.invalid/packages/ab/cd/rich-15.0.0-py3-none-any.whl.metadata (18 kB)
2026-01-02T03:04:05,006   Using cached pyarrow-26.0.1-cp311-cp311-manylinux_2_28_x86_64.whl (49.9 MB)
2026-01-02T03:04:05,006   Downloading tiny-1.0-py3-none-any.whl (500 bytes)
2026-01-02T03:04:06,006   Using cached pyarrow-26.0.1-cp311-cp311-manylinux_2_28_x86_64.whl (49.9 MB)
2026-01-02T03:04:06,006   Using cached built-4.3.0-py2.py3-none-any.whl
2026-01-02T03:04:06,006   Created wheel for pyspark: filename=pyspark-4.3.0-py2.py3-none-any.whl size=434700000 sha256=ab
"""


def test_each_file_counts_once_in_megabytes(tmp_path: Path) -> None:
    """Cached ones too: somebody else will download them; metadata read ahead is no file."""
    log = tmp_path / "pip.log"
    log.write_text(LOG)

    found = find_downloads(log)

    assert list(found.sizes.items()) == [
        ("pyspark-4.3.0.tar.gz", pytest.approx(434.2)),
        ("pyarrow-26.0.1-cp311-cp311-manylinux_2_28_x86_64.whl", pytest.approx(49.9)),
        ("rich-15.0.0-py3-none-any.whl", pytest.approx(0.31)),
        ("tiny-1.0-py3-none-any.whl", pytest.approx(0.0005)),
    ]
    assert found.built == ("built-4.3.0-py2.py3-none-any.whl",), "its source was downloaded some other time"


def test_a_log_that_is_not_there_tells_of_nothing(tmp_path: Path) -> None:
    """Somebody has set up by other means."""
    found = find_downloads(tmp_path / "none")

    assert (dict(found.sizes), found.built) == ({}, ())
