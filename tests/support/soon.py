"""The only place where the tests in Python poll."""
import time


def soon(look, what="the condition", seconds=60, every=0.05):
    """Calls look() until its result is true, and returns that result. `what`: what is awaited, or a function that says
    what was found instead, for the error after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(every)
    return found
