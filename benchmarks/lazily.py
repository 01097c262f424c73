"""Packages that are imported when something of them is used: any may be missing."""

import importlib


class Package:
    """A package by its name; what has been taken from it is kept."""

    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, name):
        found = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, found)
        return found


ctranslate2 = Package("ctranslate2")
gguf = Package("gguf")
llama_cpp = Package("llama_cpp")
ml_dtypes = Package("ml_dtypes")
nncf = Package("nncf")
onnx = Package("onnx")
onnxruntime = Package("onnxruntime")
openvino = Package("openvino")
safetensors_numpy = Package("safetensors.numpy")
sentence_transformers = Package("sentence_transformers")
threadpoolctl = Package("threadpoolctl")
tokenizers = Package("tokenizers")
torch = Package("torch")
transformers = Package("transformers")
