"""attnpy for PyTorch's CPU tensors, with gradients, `torch.compile` and `torch.export`.

`attention` is attnpy's on tensors, `scaled_dot_product_attention` has PyTorch's
signature and meaning, and `accelerate` makes PyTorch's own operators use attnpy.
"""

try:
    import torch
except ImportError as error:
    raise ImportError(
        "attnpy.integrations.torch: expected PyTorch to be installed "
        f"(pip install torch), got: {error}"
    ) from error

if not hasattr(torch.library, "custom_op"):
    raise ImportError(
        "attnpy.integrations.torch: expected PyTorch 2.4 or later, got "
        f"{torch.__version__}"
    )

from attnpy.integrations.torch._accelerate import (
    Handle,
    accelerate,
    disable,
    enable,
)
from attnpy.integrations.torch._attention import attention
from attnpy.integrations.torch._invariance import Difference, check_invariance
from attnpy.integrations.torch._quantize import quantize
from attnpy.integrations.torch._quantized import (
    QuantizedLinear,
    QuantizedMultiheadAttention,
)
from attnpy.integrations.torch._report import Report
from attnpy.integrations.torch._sdpa import scaled_dot_product_attention

__all__ = [
    "Difference",
    "Handle",
    "QuantizedLinear",
    "QuantizedMultiheadAttention",
    "Report",
    "accelerate",
    "attention",
    "check_invariance",
    "disable",
    "enable",
    "quantize",
    "scaled_dot_product_attention",
]


def __dir__() -> list[str]:
    return __all__
