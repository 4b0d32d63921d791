"""Passes that compute constants ahead of time and fold parameters into layers."""
