"""Recurrent layers on the GPU: convolutions of all tokens, then states, one token after the other."""
