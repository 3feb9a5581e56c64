"""A signature is one of a hash by a key, and nothing else passes."""

from pathlib import Path

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extras.receipts.signing import ReceiptKey, is_signed

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
SHA256 = "ab" * 32


def write_key(path: Path, kind: str = "ed25519") -> Path:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key = ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else X25519PrivateKey.generate()
    pem = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    path.write_bytes(pem)
    path.chmod(0o600)
    return path


def test_only_its_own_hash_and_key_pass(tmp_path: Path) -> None:
    one, other = (ReceiptKey.read(write_key(tmp_path / name)) for name in "ab")
    signature = one.sign(SHA256)
    assert is_signed(SHA256, signature)
    assert signature == one.sign(SHA256)
    assert not is_signed("ac" + SHA256[2:], signature)
    assert not is_signed(SHA256, signature | {"public_key": other.public_key})
    for name, value in signature.items():
        for changed in (value.upper(), value[:-1], value + "0", "", f" {value}"):
            assert changed == value or not is_signed(SHA256, signature | {name: changed})


@pytest.mark.parametrize("fault", ["missing", "text", "other kind", "open to others"])
def test_a_file_without_a_key_is_refused_with_the_way_out(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "key.pem"
    if fault == "text":
        path.write_text("key\n")
    elif fault != "missing":
        write_key(path, "x25519" if fault == "other kind" else "ed25519")
    path.exists() and path.chmod(0o666 if fault == "open to others" else 0o600)
    with pytest.raises(ConfigError, match=r"cannot be read|openssl genpkey|chmod"):
        ReceiptKey.read(path)
