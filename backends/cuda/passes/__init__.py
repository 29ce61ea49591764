"""The passes of this backend, in the order in which they run (`NOTES.md`)."""
