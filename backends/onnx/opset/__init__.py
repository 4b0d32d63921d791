"""Models for older operator sets: what each lacks, and what replaces it."""
