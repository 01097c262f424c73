"""Errors that name the argument."""

import contextlib

import pytest


@contextlib.contextmanager
def refused(error, name):
    """Within this, the error is raised: "name: expected ..., got ...".

    name is a regular expression.
    """
    with pytest.raises(error, match=rf"^{name}: expected .*, got .") as caught:
        yield caught
    assert caught.type is error  # not one of a derived class
