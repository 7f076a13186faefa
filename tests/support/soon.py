"""Waits, for the tests in Python, until something is true or until it no longer changes."""
import time


def soon(look, what="the condition", seconds=60, every=0.05):
    """Calls look() until its result is true, and returns that result. Fails after `seconds`; the error names `what`:
    the awaited condition, or a function that returns what was found instead."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(every)
    return found


def settled(look, quiet=5, seconds=60, every=0.5):
    """Calls look() until the length of its result has not changed for `quiet` seconds, or until `seconds` have passed.
    Returns the last result."""
    until, since, found = time.monotonic() + seconds, time.monotonic(), look()
    while time.monotonic() - since < quiet and time.monotonic() < until:
        time.sleep(every)
        now = look()
        if len(now) != len(found):
            since = time.monotonic()
        found = now
    return found
