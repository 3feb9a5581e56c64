"""CPU backend of `ops`: a native library, built by the machine's own C++ compiler, or else torch ops."""
