"""Signatures of receipts: Ed25519 (RFC 8032) by the package `cryptography`, over the receipt's hash."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ...private_file import check_secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_ALGORITHM = "Ed25519"
_HEX = {"public_key": re.compile("[0-9a-f]{64}"), "value": re.compile("[0-9a-f]{128}")}
_MAKE = "openssl genpkey -algorithm ed25519 -out FILE"


class ReceiptKey:
    """Private key that signs receipts."""

    def __init__(self, key: "Ed25519PrivateKey") -> None:
        self._key = key
        self.public_key = key.public_key().public_bytes_raw().hex()

    @classmethod
    def read(cls, path: Path) -> "ReceiptKey":
        """Read a PEM file. Raises ConfigError, also if the package is missing."""
        setting = f"--receipt-key-file {path}"
        check_secret(path, setting="--receipt-key-file")
        serialization, ed25519 = _modules(setting)
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except OSError as exc:
            raise ConfigError(f"{setting}: cannot be read ({exc.strerror})") from exc
        except Exception as exc:  # ValueError, TypeError, UnsupportedAlgorithm: the text may hold parts of the key
            raise ConfigError(f"{setting} is no private key in PEM without a password: {_MAKE}") from exc
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise ConfigError(f"{setting} holds another kind of key than Ed25519: {_MAKE}")
        return cls(key)

    def sign(self, sha256: str) -> dict[str, str]:
        """Return the signature of a receipt's hash."""
        return {"algorithm": _ALGORITHM, "public_key": self.public_key, "value": self._key.sign(_message(sha256)).hex()}


def is_signed(sha256: str, signature: Mapping[str, str]) -> bool:
    """True if the signature is one of this hash, by the key that it names. Raises ConfigError without the package."""
    has_form = signature["algorithm"] == _ALGORITHM and all(
        form.fullmatch(signature[name]) for name, form in _HEX.items()
    )
    if not has_form:
        return False
    _, ed25519 = _modules("a signed receipt")
    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["public_key"]))
        key.verify(bytes.fromhex(signature["value"]), _message(sha256))
    except Exception:  # InvalidSignature, or ValueError for bytes that are no key
        return False
    return True


def _message(sha256: str) -> bytes:
    return b"splitfuse receipt sha256:" + sha256.encode("ascii")


def _modules(needed_for: str) -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as exc:
        raise ConfigError(f"{needed_for} needs a package ({exc}): pip install cryptography") from exc
    return serialization, ed25519
