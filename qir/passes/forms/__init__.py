"""Passes between the forms of a program: QDQ form, integer form, groups."""
