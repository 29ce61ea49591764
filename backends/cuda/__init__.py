"""Tools for PTX, NVIDIA's virtual instruction set: so far an interpreter of it, in `ptx/`."""
