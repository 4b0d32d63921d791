"""Passes that roll equal layers into a loop and unroll loops."""
