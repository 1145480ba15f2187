"""Keys and certificates of a deployment: of the SuperLink, the SuperNodes and the clients."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


def make_certificates(folder: Path) -> None:
    """Create a certificate authority for this folder, and the SuperLink's certificate."""
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "throw-away authority")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "SuperLink")])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    ca = x509.BasicConstraints(ca=True, path_length=0)
    write(folder / "ca.pem", certificate(issuer, authority, issuer, authority, ca))
    write(folder / "server.pem", certificate(subject, server, issuer, authority, here))
    write(folder / "server.key", private(server, PrivateFormat.PKCS8))


def certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    by: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> bytes:
    """A certificate for a week, in PEM."""
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=7))
        .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), False)
    )
    return builder.sign(by, hashes.SHA384()).public_bytes(Encoding.PEM)


def make_keys(folder: Path, client: int) -> str:
    """Create a SuperNode's key, for the SuperLink, and a client's identity, for other clients.

    Returns:
        The client's public key in hexadecimal digits.
    """
    node, identity = ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()
    write(folder / f"node{client}.key", private(node, PrivateFormat.OpenSSH))
    public = node.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write(folder / f"node{client}.pub", public)
    write(folder / f"identity{client}.pem", private(identity, PrivateFormat.PKCS8))
    return identity.public_key().public_bytes_raw().hex()


def private(
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, form: PrivateFormat
) -> bytes:
    """A private key in PEM, not encrypted."""
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def write(path: Path, data: bytes) -> None:
    """Write a file that only this user can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
