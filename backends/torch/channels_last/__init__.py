"""Infers the memory layout of each tensor in a channels_last runtime, and its effects."""
