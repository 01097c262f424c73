"""Models for ONNX Runtime, built in memory and run with bound arrays.

The packages are imported where they are used: asv imports every file here.
"""

from __future__ import annotations

import numpy as np

from . import children

OWN = "com.microsoft"  # the domain of ONNX Runtime's own operators


def make_node(*arguments, **attributes):
    from onnx import helper

    return helper.make_node(*arguments, **attributes)


class Graph:
    """Operators one after the other, and the arrays that are constant."""

    def __init__(self):
        self.nodes = []
        self.weights = {}

    def add(self, operator, *inputs, n_outputs=1, **attributes):
        """Append an operator; return its output's name, or their names.

        inputs: names, "" for one that is left out, and arrays, which become weights.
        """
        names = [x if isinstance(x, str) else self.weight(x) for x in inputs]
        outputs = [f"{operator}_{len(self.nodes)}_{i}" for i in range(n_outputs)]
        self.nodes.append(make_node(operator, names, outputs, **attributes))
        return outputs[0] if n_outputs == 1 else outputs

    def weight(self, array):
        name = f"weight_{len(self.weights)}"
        self.weights[name] = np.ascontiguousarray(array)
        return name

    def bound(self, inputs, result, output, n_threads):
        """A call that runs the graph; its value named result goes to an array."""
        self.nodes.append(make_node("Identity", [result], ["output"]))
        return bound(self.nodes, inputs, {"output": output}, n_threads, self.weights)


def bound(nodes, inputs, outputs, n_threads, weights=None, shared=()):
    """A call without arguments that runs the nodes on these arrays.

    outputs: {name: array to write}, the result first. weights: {name: array} that do
    not change. shared: pairs of an input and an output that are one buffer.
    """
    import onnxruntime

    run = session(nodes, inputs, outputs, n_threads, weights or {})
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(array)
        for name, array in {**inputs, **outputs}.items()
    }
    for source, target in shared:
        values[target] = values[source]
    binding = run.io_binding()
    for name in inputs:
        binding.bind_ortvalue_input(name, values[name])
    for name in outputs:
        binding.bind_ortvalue_output(name, values[name])

    def call():
        run.run_with_iobinding(binding)
        return values[next(iter(outputs))]

    return call


def session(nodes, inputs, outputs, n_threads, weights):
    """A session for the model of these nodes, in order."""
    import onnxruntime
    from onnx import helper, numpy_helper

    graph = helper.make_graph(
        nodes,
        "benchmark",
        described(inputs),
        described(outputs),
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    # 25 is the first opset whose Attention has windows.
    opset = 25 if any("left_window_size" in attributes(node) for node in nodes) else 24
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(OWN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    if children.quiet():
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4  # what fails is reported by who asked
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def attributes(node):
    return {attribute.name for attribute in node.attribute}


def described(arrays):
    from onnx import TensorProto, helper

    types = {
        "float32": TensorProto.FLOAT,
        "float16": TensorProto.FLOAT16,
        "bool": TensorProto.BOOL,
        "int32": TensorProto.INT32,
        "int64": TensorProto.INT64,
    }
    return [
        helper.make_tensor_value_info(name, types[str(array.dtype)], array.shape)
        for name, array in arrays.items()
    ]
