"""
Attention over a picture
========================

A vision transformer cuts a picture into patches, and its class token looks at them.
The weights lie on the picture, a cell for each patch. Here queries and keys are only
the colours of the patches, and the query is a patch of the sun.
"""

import numpy as np

import attnpy
from attnpy.plot import attention_rollout, patch_map

# A sun in the sky above the sea, (H, W, 3).
rows, columns = np.mgrid[0:112, 0:160]
picture = np.zeros((112, 160, 3), np.uint8)
picture[...] = np.where((rows > 75)[..., None], (20, 70, 120), (120, 180, 235))
picture[(rows - 38) ** 2 + (columns - 100) ** 2 < 24**2] = 250, 210, 60

patches = picture.reshape(14, 8, 20, 8, 3).mean(axis=(1, 3)) / 255  # (14, 20, 3)
colours = patches.reshape(-1, 3) - 0.5  # (L, 3)
_, weights = attnpy.attention(20 * colours, colours, colours, return_weights=True)
of_sun = weights[4 * 20 + 12].reshape(14, 20)
patch_map(of_sun, picture, title="The sun looks at the sun")

# %%
# Through several layers, with their residuals, tokens are mixed further:
# ``attention_rollout`` follows them.
layers = np.tile(weights, (3, 1, 1, 1))  # three layers of one head, (layers, H, L, L)
flow = attention_rollout(layers)[4 * 20 + 12].reshape(14, 20)
patch_map(flow, picture, opacity=0.8, vmax=0.03, title="After three layers")
