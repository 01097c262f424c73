"""The RMSNorm modules of Transformers: one call instead of six operators.

Each model has a class of its own, with one of few methods. A class is known by what its
methods do: their bytecode is that of a class below. So a class that was changed, by its
author or by another library, is not taken for one of these.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from attnpy.integrations.torch._rms_norm import rms_norm
from attnpy.integrations.torch._tensors import is_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from attnpy.integrations.torch._blocks import Options

PACKAGES = ("transformers.", "transformers_modules.")  # the latter are of the hub

# ---- What the methods are ------------------------------------------------------------


class _Llama:
    def forward(self: Any, x: Any) -> Any:
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * x.to(dtype)


class _T5:
    def forward(self: Any, x: Any) -> Any:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.variance_epsilon)
        if self.weight.dtype in [torch.float16, torch.bfloat16]:
            x = x.to(self.weight.dtype)
        return self.weight * x


class _GptOss:
    def forward(self: Any, x: Any) -> Any:
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.variance_epsilon)
        return (self.weight * x).to(dtype)


class _Helium:
    def forward(self: Any, x: Any) -> Any:
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.variance_epsilon)
        return (self.weight.to(torch.float32) * x).to(dtype)


class _Weightless:
    def _norm(self: Any, x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self: Any, x: Any) -> Any:
        return self._norm(x.float()).type_as(x)


class _Llama4(_Weightless):
    def forward(self: Any, x: Any) -> Any:
        y = self._norm(x.float()).type_as(x)
        return y * self.weight


class _Moshi(_Weightless):
    def forward(self: Any, x: Any) -> Any:
        y = self._norm(x.float())
        y = y * self.weight.float()
        return y.type_as(x)


class _Gemma(_Weightless):
    def forward(self: Any, x: Any) -> Any:
        y = self._norm(x.float())
        y = y * (1.0 + self.weight.float())
        return y.type_as(x)


class _Gemma4:
    def _norm(self: Any, x: Any) -> Any:
        mean = x.pow(2).mean(-1, keepdim=True) + self.eps
        return x * torch.pow(mean, -0.5)

    def forward(self: Any, x: Any) -> Any:
        y = self._norm(x.float())
        if self.with_scale:
            y = y * self.weight.float()
        return y.type_as(x)


# ---- What they mean ------------------------------------------------------------------


def _weight(module: Any) -> Any:
    return module.weight


class Form(NamedTuple):
    """How the modules of a class scale their rows, and where their eps is.

    Those that round first do so before they multiply by the weight, and again after it.
    """

    methods: type
    eps: str = "variance_epsilon"
    weight: Callable[[Any], Tensor | None] = _weight
    rounds_first: bool = False


_FORMS = (
    Form(_Llama, rounds_first=True),
    Form(_T5, rounds_first=True),
    Form(_GptOss),
    Form(_Helium),
    Form(_Weightless, "eps", lambda module: None),
    Form(_Llama4, "eps", rounds_first=True),
    Form(_Moshi, "eps"),
    Form(_Gemma, "eps", lambda module: 1.0 + module.weight.float()),
    Form(_Gemma4, "eps", lambda module: module.weight if module.with_scale else None),
)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _code(kind: type, name: str) -> Any:
    """Return what tells a method from others, whatever its variables are called."""
    method = getattr(kind, name, None)
    if type(method) is not FunctionType or method.__closure__ or method.__defaults__:
        return method
    code = method.__code__
    if method.__globals__.get("torch") is not torch:
        return None
    consts = tuple(None if one == method.__doc__ else one for one in code.co_consts)
    return code.co_argcount, code.co_code, code.co_names, consts


_CODES = [
    (_code(one.methods, "forward"), _code(one.methods, "_norm")) for one in _FORMS
]


def _norm_of(kind: Any) -> Any:
    return getattr(kind, "_norm", None)


def form_of(kind: type) -> Form | None:
    """Return the form of a class of modules, or None if it is no RMSNorm."""
    if not issubclass(kind, nn.Module):
        return None
    forward = _code(kind, "forward")
    for form, (theirs, norm) in zip(_FORMS, _CODES, strict=True):
        if forward == theirs and norm in (None, _code(kind, "_norm")):
            return form
    return None


def compute(form: Form, kind: Any, options: Options, module: Any, x: Tensor) -> Any:
    """Return what a module returns, or NotImplemented where PyTorch is to compute it.

    The module's class is `kind`, or inherits from it.
    """
    own = type(module)
    if not is_plain(x) or (own is not kind and _norm_of(own) is not _norm_of(kind)):
        return NotImplemented
    if "_norm" in vars(module):
        return NotImplemented
    weight = form.weight(module)
    of_module = None if weight is None else module.weight.dtype
    if x.dtype not in _DTYPES or of_module not in (None, x.dtype):
        return NotImplemented
    eps, size = getattr(module, form.eps), x.shape[-1:]
    if eps is None or (weight is None and form.weight is _weight):  # an error
        return NotImplemented
    if not form.rounds_first or x.dtype is torch.float32:
        return rms_norm(options, x, size, weight, eps)
    if weight is None or weight.shape != size:
        return NotImplemented
    normed = rms_norm(options, x, size, None, eps)
    return normed if normed is NotImplemented else weight * normed
