"""Settings that every test shares."""

import signal

from hypothesis import settings

# Derandomised: the same commit gives the same verdict on every machine and every day.
settings.register_profile("mchindex", deadline=None, derandomize=True, database=None)
settings.load_profile("mchindex")

# What a script starts in the background ignores Ctrl-C, and so would the processes that tests start
# and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
