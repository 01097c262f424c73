"""BERT as a graph that PyTorch exports: for ONNX Runtime, OpenVINO and fastembed."""

import json
from functools import partial

import numpy as np

from ..lazily import onnx, torch
from . import folders, transformers_ways

# As fastembed wants to find them.
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUT = "last_hidden_state"


def graph(folder):
    """The path of the graph of a model's folder, in which it is kept."""
    return folders.made(folder / "model.onnx", partial(export, folder))


def inputs(ids, exists):
    """{name: array} of tokens (B, L) and of which of them are not padding."""
    arrays = ids, exists.astype(np.int64), np.zeros_like(ids)
    return dict(zip(INPUTS, arrays, strict=True))


def export(folder, path):
    """Write the graph, for any number and length of texts."""
    write(transformers_ways.read(folder, attention="eager"), OUTPUT, path)


def write(bert, output, path):
    """Write the graph of a model of which this output is wanted."""

    class States(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert

        def forward(self, *arguments):
            found = dict(zip(INPUTS, arguments, strict=True))
            return self.bert(**found)[output]

    example = torch.ones((2, 5), dtype=torch.int64)
    axes = {0: "batch", 1: "length"}
    of_output = axes if output == OUTPUT else {0: "batch"}
    with torch.inference_mode(False), torch.no_grad():
        torch.onnx.export(
            States().eval(),
            (example,) * 3,
            str(path),
            input_names=list(INPUTS),
            output_names=[output],
            dynamic_axes={**dict.fromkeys(INPUTS, axes), output: of_output},
            opset_version=17,
            dynamo=False,
        )


def optimized(path):
    """The graph with the operators that ONNX Runtime's optimizer makes of BERT."""
    return folders.made(path.with_name("optimized.onnx"), partial(optimize, path))


def quantized(path):
    """The graph with weights of 8 bits, whose rows are rounded as they come."""
    return folders.made(path.with_name("int8-" + path.name), partial(quantize, path))


def quantize(path, target):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        path,
        target,
        per_channel=True,
        weight_type=QuantType.QInt8,
        # Of what ONNX Runtime's own operators give.
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )


def optimize(path, target):
    from onnxruntime.transformers import optimizer

    config = json.loads(path.with_name("config.json").read_text())
    heads, size = config["num_attention_heads"], config["hidden_size"]
    found = optimizer.optimize_model(str(path), "bert", heads, size, opt_level=0)
    found.save_model_to_file(str(target))
