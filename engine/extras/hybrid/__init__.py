"""State slots and checkpoints of models with recurrent layers, beside the blocks of their attention layers."""

from ...extension import EngineExtension

EXTENSION = EngineExtension(package=__name__, part="part:States.of")
