"""Adapters to other libraries, each of which imports its own lazily."""
