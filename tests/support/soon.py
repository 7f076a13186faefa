"""The only place where the tests in Python look again and again until something is true."""
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
