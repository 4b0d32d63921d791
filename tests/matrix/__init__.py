"""The rows that must work: two networks quantized for five frameworks, and run there."""
