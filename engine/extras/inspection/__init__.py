"""Inspection of the engine: a request's history in words, a record per step, a map of the cache. No torch."""

from ...extension import EngineExtension

EXTENSION = EngineExtension(package=__name__, part="histories:Inspection")
