# SPDX-License-Identifier: Apache-2.0
"""When certificates end, and whose they are, as their files say."""

from __future__ import annotations

import contextlib
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from consumerd.net.tls import read_ends, read_subject

ENDS = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
LATER = datetime(2055, 1, 2, 3, 4, 5, tzinfo=UTC)


def issue(authority: trustme.CA, ends: datetime) -> trustme.LeafCert:
    return authority.issue_cert("client.example", not_after=ends)


@pytest.mark.parametrize("ends", [ENDS, LATER])
def test_the_end_is_that_of_the_certificate(ends: datetime) -> None:
    """From 2050 on the time has another form."""
    (pem,) = issue(trustme.CA(), ends).cert_chain_pems

    assert read_ends(pem.bytes().decode()) == [ends.timestamp()]


def test_each_certificate_of_a_file_counts_and_a_key_does_not() -> None:
    """A file may hold the key first and intermediate authorities last."""
    parent = trustme.CA()
    chain = issue(trustme.CA(parent_cert=parent), ENDS)
    text = "".join(pem.bytes().decode() for pem in (chain.private_key_pem, *chain.cert_chain_pems))
    first, *others = read_ends(text)

    assert first == ENDS.timestamp()
    assert len(others) == len(chain.cert_chain_pems) - 1 == 1
    assert read_ends(chain.private_key_pem.bytes().decode()) == []


@pytest.mark.parametrize(
    ("name", "behind"),
    [("TRUSTED CERTIFICATE", bytes.fromhex("300c300a06082b06010505070302")), ("X509 CERTIFICATE", b"")],
    ids=["trusted for clients", "old name"],
)
def test_other_names_of_certificates_that_openssl_loads_are_read(name: str, behind: bytes, tmp_path: Path) -> None:
    """``openssl x509 -trustout -addtrust clientAuth`` puts what it is trusted for behind the certificate."""
    issued = issue(trustme.CA(), ENDS)
    (pem,) = issued.cert_chain_pems
    text = ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(pem.bytes().decode()) + behind)
    text = text.replace("CERTIFICATE", name)
    file = tmp_path / "certificate.pem"
    file.write_text(issued.private_key_pem.bytes().decode() + text)

    ssl.create_default_context().load_cert_chain(file)  # what the connection does with it
    assert read_ends(file.read_text()) == [ENDS.timestamp()]


def test_damaged_bytes_raise_nothing_but_value_error() -> None:
    """A file may change on its way."""
    (pem,) = issue(trustme.CA(), ENDS).cert_chain_pems
    der = ssl.PEM_cert_to_DER_cert(pem.bytes().decode())
    for at in range(len(der)):
        for bad in (der[:at], der[:at] + bytes([der[at] ^ 0xFF]) + der[at + 1 :]):
            with contextlib.suppress(ValueError):
                read_ends(ssl.DER_cert_to_PEM_cert(bad))


def issue_for(*parts: list[tuple[x509.ObjectIdentifier, str]]) -> str:
    """Return a certificate for a subject, which has several attributes in each part."""
    subject = x509.Name(
        x509.RelativeDistinguishedName(x509.NameAttribute(kind, value) for kind, value in part) for part in parts
    )
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the authority")]))
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(datetime(2026, 1, 1, tzinfo=UTC))
        .not_valid_after(ENDS)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


CN = NameOID.COMMON_NAME


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        (
            [
                [(NameOID.COUNTRY_NAME, "DE")],
                [(NameOID.ORGANIZATION_NAME, 'Example, "Inc" + <a>;\\ #1')],
                [(NameOID.ORGANIZATIONAL_UNIT_NAME, "data")],
                [(CN, "lake")],
            ],
            r"CN=lake,OU=data,O=Example\, \"Inc\" \+ \<a\>\;\\ \#1,C=DE",
        ),
        (
            [
                [(NameOID.DOMAIN_COMPONENT, "org")],
                [(NameOID.STATE_OR_PROVINCE_NAME, "S\u00fcd")],
                [(NameOID.LOCALITY_NAME, " #x ")],
                [(CN, "a"), (NameOID.USER_ID, "u7")],
            ],
            "CN=a+UID=u7,L=\\ \\#x\\ ,ST=S\u00fcd,DC=org",
        ),
        ([[(NameOID.EMAIL_ADDRESS, "a@b.de")], [(CN, "#lake")]], r"CN=\#lake,1.2.840.113549.1.9.1=#16066140622e6465"),
        ([[(CN, "a=b  c  ")]], "CN=a\\=b  c\\ \\ "),
        ([[(CN, "  two")]], "CN=\\ \\ two"),
        ([[(CN, " ")]], "CN=\\ "),
    ],
)
def test_the_subject_is_named_as_java_names_it(
    parts: list[list[tuple[x509.ObjectIdentifier, str]]], shown: str
) -> None:
    """A broker compares this text with its ACLs: each was printed by ``X500Principal.getName`` of Java 17."""
    assert shown == read_subject(issue_for(*parts))


def test_a_file_without_a_certificate_has_no_subject() -> None:
    """A key alone, for example."""
    with pytest.raises(ValueError, match="no certificate"):
        read_subject(trustme.CA().private_key_pem.bytes().decode())


def test_a_subject_that_is_cut_off_is_refused() -> None:
    """Each prefix of the certificate gives ValueError, and nothing else."""
    body = ssl.PEM_cert_to_DER_cert(issue_for([(CN, "lake")]))
    for size in range(0, len(body), 7):
        with contextlib.suppress(ValueError):
            read_subject(ssl.DER_cert_to_PEM_cert(body[:size]))
