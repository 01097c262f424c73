"""ViT-base with patches of 16 x 16 pixels, with random weights: pictures to vectors."""

import functools
from dataclasses import dataclass
from functools import partial

import numpy as np

import attnpy

from .. import cases
from ..lazily import torch, transformers
from ..onnx_ways import bound, session
from ..peers import Way
from . import folders, openvino_ways, transformers_ways

NAME = "ViT-base/16"
CONFIG = folders.CONFIGS[NAME]
SIZE, PATCH, EMBED_DIM = (
    CONFIG[name] for name in ("image_size", "patch_size", "hidden_size")
)
N_PATCHES = (SIZE // PATCH) ** 2
INPUT, OUTPUT = "pixel_values", "last_hidden_state"


@dataclass(frozen=True)
class Pictures:
    """B pictures of 224 x 224 pixels."""

    batch: int
    dtype: str = "float32"

    model = NAME

    def pixels(self):
        """The pictures, (B, H, W, 3)."""
        shape = self.batch, SIZE, SIZE, 3
        return np.random.default_rng(2).standard_normal(shape, dtype=np.float32)

    def arrays(self):
        """The pictures, and attnpy's model in the case's dtype."""
        return self.pixels(), vit(self.dtype)

    def expected(self):
        """The vectors of the tokens in float64, by attnpy: (B, L, E)."""
        return vit("float64")(self.pixels())

    def read(self, states):
        return np.asarray(states)

    def flops(self):
        length = N_PATCHES + 1
        e, inner = EMBED_DIM, CONFIG["intermediate_size"]
        layer = 2 * (4 * e**2 + 2 * e * inner) * length + 4 * e * length**2
        patches = 2 * 3 * PATCH**2 * e * N_PATCHES
        return self.batch * (CONFIG["num_hidden_layers"] * layer + patches)


@functools.cache
def vit(dtype):
    """attnpy's model; float64 is the yardstick."""
    kind, read = cases.dtype_of(dtype), attnpy.models.ImageEncoder.from_pretrained
    return read(folders.folder(NAME), dtype=kind)


def theirs(case):
    """The pictures as all others take them, (B, 3, H, W)."""
    return np.ascontiguousarray(np.moveaxis(case.pixels(), -1, 1))


def attnpy_ways(case, arrays, n_threads):
    pixels, model = arrays
    yield Way("ImageEncoder", partial(model, pixels, num_threads=n_threads), case.read)


@functools.lru_cache(maxsize=1)
def read(attention):
    """Transformers' model, without its pooler."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    found = transformers.ViTModel.from_pretrained(
        folders.folder(NAME),
        add_pooling_layer=False,
        attn_implementation=attention,
        local_files_only=True,
    )
    return found.eval()


def transformers_way(case, arrays, n_threads):
    model, pixels = read("sdpa"), torch.from_numpy(theirs(case))

    def call(run):
        return run(pixel_values=pixels).last_hidden_state

    yield Way("sdpa", partial(call, model), case.read)
    if transformers_ways.AS_IT_IS not in transformers_ways.os.environ:
        compiled = transformers_ways.compiled(model)
        yield Way("torch.compile", partial(call, compiled), case.read)


def graph():
    """The path of the graph that PyTorch exports, in which it is kept."""
    return folders.made(folders.folder(NAME) / "model.onnx", export)


def export(path):
    """Write the graph, for any number of pictures."""

    class States(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.vit = read("eager")

        def forward(self, pixels):
            return self.vit(pixel_values=pixels)[OUTPUT]

    with torch.inference_mode(False), torch.no_grad():
        torch.onnx.export(
            States().eval(),
            (torch.ones((2, 3, SIZE, SIZE)),),
            str(path),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_axes={INPUT: {0: "batch"}, OUTPUT: {0: "batch"}},
            opset_version=17,
            dynamo=False,
        )


def onnxruntime_ways(case, arrays, n_threads):
    shape = case.batch, N_PATCHES + 1, EMBED_DIM
    outputs = {OUTPUT: np.empty(shape, np.float32)}
    call = bound(session(graph(), n_threads), {INPUT: theirs(case)}, outputs)
    yield Way("exported", call, case.read)


def openvino_way(case, arrays, n_threads):
    pixels = theirs(case)
    model = openvino_ways.core().read_model(graph())
    model.reshape({INPUT: list(pixels.shape)})
    run = openvino_ways.compiled(model, case.dtype, n_threads).create_infer_request()
    more = {"share_inputs": True, "share_outputs": True}
    call = partial(run.infer, {INPUT: pixels}, **more)
    yield Way("static shapes", lambda: call()[0], case.read)


WAYS = {
    "attnpy": attnpy_ways,
    "transformers": transformers_way,
    "onnxruntime": onnxruntime_ways,
    "openvino": openvino_way,
}
