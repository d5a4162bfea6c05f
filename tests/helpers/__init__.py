"""Helpers that tests share: oracles, sample codes, pictures, small models."""
