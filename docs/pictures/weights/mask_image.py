"""
Masks
=====

Which query may attend to which key. The masks of `attnpy.masks` are boolean arrays that
combine with ``&`` and ``|``.
"""

import matplotlib.pyplot as plt

from attnpy import masks
from attnpy.plot import mask_image

figure, axes = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained")
mask_image(masks.causal(8), ax=axes[0], title="causal")
mask_image(masks.prefix_lm(8, 3), ax=axes[1], title="a prefix that all see")
documents = masks.document([0, 0, 0, 1, 1, 1, 1, 2])
mask_image(documents & masks.causal(8), ax=axes[2], title="documents, causal")

# %%
# A padding mask has a row for each sequence of the batch.
mask_image(masks.padding([3, 8, 5], 8), title="padding")
