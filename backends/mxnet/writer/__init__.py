"""Writes graphs as MXNet's symbols with their parameters, without MXNet."""
