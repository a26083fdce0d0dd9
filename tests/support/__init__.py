"""Oracles and helpers that tests of several modules share."""
