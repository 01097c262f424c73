"""Adapters to other libraries, each of which imports its own lazily."""


def __dir__() -> list[str]:
    return [name for name in globals() if not name.startswith("_")]  # what is imported
