"""PTX in NumPy: a parser."""
