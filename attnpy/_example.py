"""The example that `python -m attnpy` shows, of notebooks/01_first_attention.ipynb.

The embeddings are those of the notebook "Attention please!", made up.
"""

WORDS = ("Write", "your", "first", "Attention", "mechanism")

EMBEDDINGS = (
    (0.172, 0.295, 0.618, 0.459, 0.818, 0.071),
    (0.265, 0.563, 0.718, 0.323, 0.126, 0.235),
    (0.206, 0.333, 0.044, 0.862, 0.152, 0.594),
    (0.300, 0.505, 0.727, 0.495, 0.898, 0.954),
    (0.095, 0.809, 0.596, 0.110, 0.447, 0.418),
)
