"""Options of the engine, a folder each. `engine/core` imports none of them."""
