"""Receipts of answers, and POST /verify, which checks an answer in one pass over its tokens."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...extension import Extension
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class ReceiptSettings(ServerSettings):
    """Key that signs receipts."""

    receipt_key_file: str | None = setting(
        None,
        repr=False,
        help="file with a private Ed25519 key in PEM that signs receipts; needs pip install cryptography",
    )


EXTENSION = Extension(
    package=__name__,
    requires=("engine/extras/receipts",),
    settings=ReceiptSettings,
    paths=("/verify",),
    router="routes:router",
    receipts="part:Receipts",
    part="part:Receipts",
    starts=lambda settings: settings.receipt_key_file is not None,
)
