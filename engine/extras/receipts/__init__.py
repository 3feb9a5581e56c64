"""Receipts of answers: their canonical form, the fingerprints and signatures in them, and their verification."""

from dataclasses import dataclass

from ...config.engine_settings import EngineSettings
from ...config.setting import setting
from ...extension import EngineExtension


@dataclass(frozen=True, kw_only=True)
class ReceiptSettings(EngineSettings):
    """Key that signs receipts."""

    receipt_key_file: str | None = setting(
        None,
        repr=False,
        help="file with a private Ed25519 key in PEM that signs receipts; needs pip install cryptography",
    )


EXTENSION = EngineExtension(
    package=__name__,
    settings=ReceiptSettings,
    part="replay:Replaying",
    order=1,  # over all other drafts
    calls={"verify": "llm_receipts:verify"},
    keywords={"receipt": "llm_keyword:with_receipts"},
    call_observer="llm_keyword:maker",
)
