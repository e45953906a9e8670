"""Symmetries of the posterior: found, removed, measured."""
