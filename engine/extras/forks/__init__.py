"""Forks: an answer goes on from one of its tokens, in another way."""

from ...extension import EngineExtension

EXTENSION = EngineExtension(package=__name__, calls={"fork": "fork:fork"})
