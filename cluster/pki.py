"""The keys of a throwaway control plane: a CA, a serving certificate for 127.0.0.1, the ServiceAccount key.

Clients verify the server by the CA in their kubeconfig, as they would on a real cluster. All of it lives as
long as the cluster's folder.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cluster.state import write_private

_LIFETIME = datetime.timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Pki:
    """Paths of PEM files."""

    ca: Path
    ca_key: Path
    serving: Path
    serving_key: Path
    service_account_key: Path
    service_account_public: Path


def make(folder: Path) -> Pki:
    """Make all keys in ``folder``, each file mode 0600."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    ca_key, serving_key, service_account_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca = _certificate("phalanx-ca", ca_key, None, None)
    serving = _certificate("kube-apiserver", serving_key, ca, ca_key)
    pki = Pki(
        ca=folder / "ca.crt",
        ca_key=folder / "ca.key",
        serving=folder / "serving.crt",
        serving_key=folder / "serving.key",
        service_account_key=folder / "service-account.key",
        service_account_public=folder / "service-account.pub",
    )
    write_private(pki.ca, _pem(ca))
    write_private(pki.serving, _pem(serving))
    write_private(pki.ca_key, _key_pem(ca_key))
    write_private(pki.serving_key, _key_pem(serving_key))
    write_private(pki.service_account_key, _key_pem(service_account_key))
    public = service_account_key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    write_private(pki.service_account_public, public.decode())
    return pki


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey | None,
) -> x509.Certificate:
    """Return a certificate: a CA's if there is no issuer, else one for serving on this machine.

    It has all the extensions OpenSSL's strict mode asks for (on by default in Python from 3.13).
    """
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    is_ca = issuer is None or issuer_key is None
    signer = key if issuer_key is None else issuer_key
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks jump on throwaway machines.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=is_ca,
                crl_sign=is_ca,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if not is_ca:
        names = [x509.DNSName("localhost"), x509.DNSName("kubernetes.default.svc")]
        addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName([*names, *addresses]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
