"""Nests as plain Numba source, element by element: whatever tensor cores do not fit."""
