# SPDX-License-Identifier: Apache-2.0
"""The supported library is frozen: names and signatures of ``consumerd.api`` are those of ``api.txt``.

After a change on purpose: ``python -m tests.architecture.test_api`` writes the list anew, and the changelog tells of it.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from consumerd import api
from tests.support.documents import DOCS

MADE_BY_THE_LIBRARY: Final = frozenset(
    {"Delivery", "FetchedBatch", "MessageStream", "MultiFetched", "Producer", "Record", "RecordBatch", "RecordMetadata"}
    | {"SimpleConsumer", "TopicPartition"}
)
"""Classes whose constructors programs do not call."""
FROZEN: Final = Path(__file__).with_name("api.txt")


def describe() -> Iterator[str]:
    """Yield a line for each name, and for each public attribute of a class."""
    for name in api.__all__:
        thing = getattr(api, name)
        if inspect.isclass(thing):
            bases = ", ".join(base.__name__ for base in thing.__bases__)
            yield f"class {name}({bases})"
            if not issubclass(thing, BaseException):
                yield from _describe_class(name, thing)
        elif callable(thing):
            yield f"{name}{_sign(thing)}"
        else:
            yield f"{name} = {thing!r}"


def _describe_class(name: str, thing: type) -> Iterator[str]:
    if issubclass(thing, enum.Enum):
        yield f"{name}: {', '.join(member.name for member in thing)}"
        return
    fields = getattr(thing, "model_fields", None)
    if fields is not None:
        yield f"{name}: {', '.join(sorted(fields))}"
        return
    if name not in MADE_BY_THE_LIBRARY:
        yield f"{name}{_sign(thing)}"
    elif dataclasses.is_dataclass(thing):
        yield f"{name}: {', '.join(one.name for one in dataclasses.fields(thing) if not one.name.startswith('_'))}"
    for attribute, value in sorted(vars(thing).items()):
        if attribute.startswith("_") and attribute not in ("__aenter__", "__aexit__", "__aiter__", "__anext__"):
            continue
        if isinstance(value, property):
            yield f"{name}.{attribute}"
        elif isinstance(value, classmethod | staticmethod) or inspect.isfunction(value):
            yield f"{name}.{attribute}{_sign(getattr(thing, attribute))}"


def _sign(thing: object) -> str:
    try:
        return str(inspect.signature(thing)).replace("'", "")  # type: ignore[arg-type]  # anything callable
    except ValueError:
        return "(...)"


def test_the_library_is_what_it_was() -> None:
    """Programs of others depend on it: a name that goes, or a new order of arguments, breaks them."""
    assert FROZEN.read_text().splitlines() == list(describe())


def test_every_name_is_documented_where_it_is_made() -> None:
    """An editor shows it."""
    missing = [name for name in api.__all__ if callable(getattr(api, name)) and not inspect.getdoc(getattr(api, name))]

    assert missing == []


def test_the_page_uses_the_library_alone() -> None:
    """A program of the page must not reach past the supported surface."""
    text = (DOCS / "library.md").read_text()
    imports = [line for line in text.splitlines() if line.startswith(("from consumerd", "import consumerd"))]

    assert imports
    assert [line for line in imports if not line.startswith("from consumerd.api import ")] == []


if __name__ == "__main__":
    FROZEN.write_text("".join(f"{line}\n" for line in describe()))
