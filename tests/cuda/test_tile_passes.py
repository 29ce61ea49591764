"""The passes of the CUDA backend: what they make means the same, reads as text, and says why where they decline."""
