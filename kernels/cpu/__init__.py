"""The CPU backend of `ops`: a native library, built by the machine's own C++ compiler; torch ops where it cannot be."""
