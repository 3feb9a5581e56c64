"""Receipts of answers: their canonical form, the fingerprints in them, and their verification."""

from ...extension import EngineExtension

EXTENSION = EngineExtension(
    package=__name__,
    part="replay:Replaying",
    order=1,  # over all other drafts
    calls={"verify": "llm_receipts:verify"},
    keywords={"receipt": "llm_keyword:with_receipts"},
    call_observer="llm_keyword:maker",
)
