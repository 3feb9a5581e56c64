"""Optional parts of the engine, one folder per extra. `engine/core` imports none of them."""
