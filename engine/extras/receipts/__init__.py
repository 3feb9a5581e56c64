"""Receipts of answers: their canonical form, the fingerprints in them, and their verification."""

from ...extension import EngineExtension

EXTENSION = EngineExtension(package=__name__, part="replay:Replaying", order=1)  # over all other drafts
