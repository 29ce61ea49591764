"""From source to PTX and machine code, what is known about it, and what is kept of it."""
