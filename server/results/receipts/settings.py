"""The setting of receipts."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class ReceiptSettings(ServerSettings):
    """Key that signs receipts."""

    receipt_key_file: str | None = setting(
        None,
        repr=False,
        help="file with a private Ed25519 key in PEM that signs receipts; needs pip install cryptography",
    )
