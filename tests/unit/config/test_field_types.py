# SPDX-License-Identifier: Apache-2.0
"""Types of fields, as people write them."""

from __future__ import annotations

import pytest

from consumerd.config.field_types import SCALARS, FieldType, MalformedType, parse_type


@pytest.mark.parametrize("name", sorted(SCALARS))
def test_a_scalar_is_its_name(name: str) -> None:
    """Nothing that is documented may be missing."""
    assert FieldType(kind=name) == parse_type(name)
    assert FieldType(kind=name, required=True) == parse_type(f" {name.upper()}  NOT null ")


def test_types_nest_and_say_where_null_is_refused() -> None:
    """Each level has a ``not null`` of its own."""
    expected = FieldType(
        kind="array",
        required=True,
        element=FieldType(
            kind="struct",
            fields=(
                ("sku", FieldType(kind="string", required=True)),
                ("a b", FieldType(kind="map", element=FieldType(kind="decimal", precision=18, scale=2))),
                ("n", FieldType(kind="bigint")),
            ),
        ),
    )

    text = "array<struct<sku:string not null, `a b`: map<string, decimal(18, 2)>, n:long>> not null"
    assert expected == parse_type(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a type at the end"),
        ("array<int", "expected '>' at the end"),
        ("decimal(3)", "expected ',' at ')'"),
        ("decimal(39,2)", "a precision of 1 to 38"),
        ("decimal(4,5)", "no larger scale"),
        ("varchar", "'varchar' is no type; there is array<>, bigint"),
        ("int int", "'int' stands behind the type int; only 'not null' may"),
        ("decimal(3,2) not", "'not' stands behind the type decimal(3,2); only 'not null' may"),
        ("map<int,int>", "the keys of a map are of type string"),
        ("struct<a:int,A:int>", "field 'A' is there twice"),
        ("struct<>", "expected a field's name at '>'"),
        ("struct<a int>", "expected ':' at 'int>'"),
        ("§", "expected a type at '§'"),
        ("array<" * 40 + "int" + ">" * 40, "nested deeper than 32 levels"),
    ],
)
def test_what_is_no_type_is_refused_where_it_goes_wrong(text: str, message: str) -> None:
    """Settings are mended by their errors."""
    with pytest.raises(MalformedType) as raised:
        parse_type(text)

    assert message in str(raised.value)
