"""A module that does not load."""

raise ZeroDivisionError("the sky has fallen")
