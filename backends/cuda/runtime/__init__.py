"""Calls of kernels: on a GPU by the driver library, or in the interpreter of PTX."""
