"""Certificates of an authority of the tests' own, for connections on this machine."""

from __future__ import annotations

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from randquant.rounds import TLS


def parties(folder, *names):
    """Files of each party, whose certificates one new authority has signed."""
    folder.mkdir(parents=True, exist_ok=True)
    root, key = _signed("authority", None, None)
    (folder / "authority.pem").write_bytes(root.public_bytes(Encoding.PEM))
    return [_party(folder, name, root, key) for name in names]


def _party(folder, name, root, key):
    own, private = _signed(name, root, key)
    files = folder / f"{name}.pem", folder / f"{name}.key"
    files[0].write_bytes(own.public_bytes(Encoding.PEM))
    keep(files[1], private)
    return TLS(*map(str, (folder / "authority.pem", *files)))


def keep(path, key):
    """Write a private key to a file for its owner alone; the file's name."""
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    return str(path)


def _signed(name, root, root_key):
    """A certificate for this machine, by the root or by itself; and its key."""
    key = generate_private_key(SECP256R1())
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(own if root is None else root.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(here), critical=False)
        .add_extension(x509.BasicConstraints(ca=root is None, path_length=None), critical=True)
        .sign(key if root_key is None else root_key, SHA256())
    )
    return made, key
