"""Which tokens the next step computes, and which blocks of the KV cache hold them. No torch, no clock, no I/O."""
