"""State slots and checkpoints of models with recurrent layers, beside the blocks of their attention layers."""
