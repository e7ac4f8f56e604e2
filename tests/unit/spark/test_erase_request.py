# SPDX-License-Identifier: Apache-2.0
"""What the job erase is asked for, and what it refuses."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from pydantic import ValidationError

from consumerd.config.pipeline import Erase
from consumerd.errors import ConfigError
from consumerd.spark.erase_request import read_request


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"key": "grün"}, ("grün".encode(),)),
        ({"key": ""}, (b"",)),
        ({"key_hex": "00fF"}, (b"\x00\xff",)),
    ],
)
def test_keys_are_bytes(options: dict[str, object], expected: tuple[bytes, ...]) -> None:
    """Text is UTF-8, and an empty key is a key."""
    assert expected == read_request(Erase(topic="orders", **options), declared=True).keys  # type: ignore[arg-type]


def test_keys_are_the_lines_of_a_file(tmp_path: Path) -> None:
    """Each once, with the blanks in them; digits that are none are told by their line."""
    path = tmp_path / "keys"
    path.write_bytes(b"a\n b \n\na\r\nc")
    assert (b"a", b" b ", b"c") == read_request(Erase(topic="orders", keys_file=path), declared=True).keys
    path.write_bytes(b"6162\n63\n")
    assert (b"ab", b"c") == read_request(Erase(topic="orders", keys_file=path, keys_are_hex=True), declared=True).keys
    path.write_bytes(b"6162\n6g\n")
    with pytest.raises(ConfigError, match="line 2 is not made of hexadecimal digits"):
        read_request(Erase(topic="orders", keys_file=path, keys_are_hex=True), declared=True)
    path.write_bytes(b"\n")
    with pytest.raises(ConfigError, match="there is no key in it"):
        read_request(Erase(topic="orders", keys_file=path), declared=True)
    with pytest.raises(ConfigError, match="No such file"):
        read_request(Erase(topic="orders", keys_file=tmp_path / "none"), declared=True)


def test_a_predicate_is_evaluated_where_the_topic_is_decoded() -> None:
    """Unless the table is named."""
    where = Erase(topic="orders", where="value.customer = 17")
    assert ["silver", "bronze"] == [read_request(where, declared=one).source for one in (True, False)]
    named = Erase(topic="orders", where="partition = 1", where_in="bronze")
    assert "bronze" == read_request(named, declared=True).source


def test_a_report_has_the_digests_of_keys() -> None:
    """Whoever reads it does not learn the key."""
    said = read_request(Erase(topic="orders", key="anna"), declared=True).describe()

    assert {"keys": 1, "sha256": [hashlib.sha256(b"anna").hexdigest()]} == said


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"key": "a"}, "pipeline.erase.topic: missing"),
        ({"topic": "a/b", "key": "a"}, "pipeline.erase.topic: "),
        ({"topic": "orders"}, "it does not say which records of orders"),
        ({"topic": "orders", "where": " "}, "pipeline.erase.where: empty"),
    ],
)
def test_what_does_not_say_enough_is_refused(options: dict[str, object], expected: str) -> None:
    """Nothing is erased by a mistake."""
    with pytest.raises(ConfigError, match=expected):
        read_request(Erase(**options), declared=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"key": "a", "where": "true"}, "give one of key, key_hex, keys_file and where, not key and where"),
        ({"key": "a", "where_in": "silver"}, "where_in goes with where"),
        ({"key": "a", "keys_are_hex": True}, "keys_are_hex goes with keys_file"),
        ({"key_hex": "abc"}, "key_hex"),
    ],
)
def test_what_contradicts_itself_is_refused(options: dict[str, object], expected: str) -> None:
    """Two choices could mean either or both."""
    with pytest.raises(ValidationError, match=expected):
        Erase(**options)  # type: ignore[arg-type]
