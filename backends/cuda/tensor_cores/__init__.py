"""Grids as Numba source that calls tile intrinsics: kernels for tensor cores."""
