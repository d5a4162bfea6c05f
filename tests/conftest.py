"""Settings that every test shares."""

from hypothesis import settings

# Derandomised: the same commit gives the same verdict on every machine and every day.
settings.register_profile("mchindex", deadline=None, derandomize=True, database=None)
settings.load_profile("mchindex")
