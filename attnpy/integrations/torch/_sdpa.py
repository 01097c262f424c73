"""PyTorch's scaled_dot_product_attention, by attnpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant

from attnpy import _checks
from attnpy._gradients import NAMES
from attnpy.integrations.torch import _tensors
from attnpy.integrations.torch._attention import attend, attend_at_once

if TYPE_CHECKING:
    from collections.abc import Sequence

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention as `torch.nn.functional.scaled_dot_product_attention` does.

    Parameters
    ----------
    query : Tensor, shape (..., Lq, D)
        On the CPU, in float64, float32, float16 or bfloat16, like the other two.
    key : Tensor, shape (..., Lk, D)
        All axes before the last two broadcast.
    value : Tensor, shape (..., Lk, Dv)
        Likewise.
    attn_mask : Tensor, broadcast to (..., Lq, Lk), optional
        bool: True where the query may attend. float32 or the query's dtype: added to
        the scaled scores; it may need a gradient. Or a mask from
        `torch.nn.attention.bias`.
    dropout_p : float, optional
        From 0 to 1: the probability with which a weight becomes 0. The seed is drawn
        from PyTorch's generator, so `torch.manual_seed` makes a call repeatable; the
        dropped weights differ from PyTorch's.
    is_causal : bool, optional
        Query i sees the keys up to i, whatever `Lq` and `Lk` are. Not with `attn_mask`.
    scale : float, optional
        By default ``1 / sqrt(D)``.
    enable_gqa : bool, optional
        Allow fewer heads, axis -3, of key and value than of query.

    Returns
    -------
    output : Tensor, shape (..., Lq, Dv)
        In the dtype of the query.

    Raises
    ------
    TypeError, ValueError
        Where PyTorch raises a RuntimeError: if dtypes or shapes do not fit, or
        arguments exclude each other; and if a tensor is not dense or not on the CPU.
    NotImplementedError
        If a gradient of a gradient is needed.

    See Also
    --------
    attention : has more options. Its ``causal=True`` aligns the last query with the
        last key.

    Notes
    -----
    A query that may see nothing, or whose scores are all -inf, gets 0, as from PyTorch.

    Examples
    --------
    >>> import torch
    >>> from attnpy.integrations.torch import scaled_dot_product_attention
    >>> query, key, value = torch.randn(3, 2, 8, 10, 64)
    >>> output = scaled_dot_product_attention(query, key, value, is_causal=True)
    >>> expected = torch.nn.functional.scaled_dot_product_attention(
    ...     query, key, value, is_causal=True
    ... )
    >>> torch.allclose(output, expected, atol=1e-5)
    True
    """
    options: dict[str, Any] = {} if scale is None else {"scale": scale}
    is_causal = _tensors.flag(is_causal, "is_causal")
    enable_gqa = _tensors.flag(enable_gqa, "enable_gqa")
    n_axes = getattr(dropout_p, "ndim", 0)
    if dropout_p is None or isinstance(dropout_p, bool) or n_axes > 0:
        axes = f" with {n_axes} axes" if n_axes else ""
        raise TypeError(
            f"dropout_p: expected a number, got {type(dropout_p).__name__}{axes}"
        )
    if attn_mask is not None:
        attn_mask, is_causal = known_mask(attn_mask, is_causal)
    if is_causal:
        options["causal"] = "top_left"
    if attn_mask is None and dropout_p == 0:
        output = attend_at_once(query, key, value, options, as_torch=True)
        if output is not None:
            return output
    try:
        results = attend_as_torch(
            (query, key, value), attn_mask, dropout_p, enable_gqa, options
        )
    except (TypeError, ValueError) as error:
        with _checks.renamed(mask="attn_mask", bias="attn_mask", dropout="dropout_p"):
            raise error
    return results[0]


def known_mask(attn_mask: Tensor, is_causal: bool) -> tuple[Tensor | None, bool]:
    """Return mask and `is_causal` for PyTorch's CausalBias, which has no numbers."""
    if type(attn_mask) is not CausalBias:
        return attn_mask, is_causal
    if is_causal:
        raise ValueError("is_causal: expected False with a CausalBias, got True")
    n_queries, n_keys = attn_mask.seq_len_q, attn_mask.seq_len_kv
    if attn_mask.variant is CausalVariant.UPPER_LEFT or n_queries == n_keys:
        return None, True
    visible = torch.ones(n_queries, n_keys, dtype=torch.bool, device="cpu")
    return visible.tril(n_keys - n_queries), False


def attend_as_torch(
    tensors: Sequence[Tensor],
    attn_mask: Tensor | None,
    dropout_p: float,
    enable_gqa: bool,
    options: dict[str, Any],
    return_weights: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return output, weights and LSE of a call that means what PyTorch's means."""
    if torch.is_autocast_enabled("cpu"):
        *tensors, attn_mask = _autocast(*tensors, attn_mask)
    _check(tensors, attn_mask, "causal" in options)
    bias = None
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        options["mask"] = attn_mask
    else:
        bias = attn_mask
    query, key, value = tensors
    tensors = _with_heads(query, key, value, enable_gqa)
    if dropout_p == 1:  # then no key is left
        query, key, value = tensors
        tensors = (query, key[..., :0, :], value[..., :0, :])
        bias = None if bias is None else bias[..., :0]
        options.pop("mask", None)
    elif dropout_p != 0:
        options["dropout"] = dropout_p
        options["dropout_seed"] = torch.randint(-(2**63), 2**63 - 1, (), device="cpu")
    return attend((*tensors, bias, None), options, return_weights)


def _autocast(*tensors: Any) -> tuple[Any, ...]:
    """Return tensors as PyTorch's autocast, which does not see a call, casts them."""
    dtype = torch.get_autocast_dtype("cpu")
    return tuple(
        x.to(dtype) if getattr(x, "dtype", None) in DTYPES[1:] and x.is_cpu else x
        for x in tensors
    )


def _check(tensors: Sequence[Tensor], attn_mask: Tensor | None, causal: bool) -> None:
    """Refuse arguments that PyTorch refuses and attention does not."""
    dtype = getattr(tensors[0], "dtype", None)
    for tensor, name in zip(tensors, NAMES, strict=False):
        if not _tensors.is_plain(tensor):
            _tensors.check(tensor, name, meta=True)
        if tensor.dtype not in DTYPES:
            raise TypeError(
                f"{name}: expected float64, float32, float16 or bfloat16, got "
                f"{tensor.dtype}"
            )
        if tensor.dtype is not dtype:
            raise TypeError(
                f"{name}: expected the query's dtype, {dtype}, got {tensor.dtype}"
            )
        if tensor.dim() < 2:
            raise ValueError(
                f"{name}: expected at least 2 axes, got shape {tuple(tensor.shape)}"
            )
    if attn_mask is None:
        return
    _tensors.check(attn_mask, "attn_mask", meta=True)
    if causal:
        raise ValueError("attn_mask: expected None with is_causal=True, got a tensor")
    if attn_mask.dtype not in (torch.bool, torch.float32, dtype):
        raise TypeError(
            "attn_mask: expected dtype torch.bool, torch.float32 or the query's, "
            f"got {attn_mask.dtype}"
        )


def _with_heads(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tensors with heads for attention: grouped, or equally many.

    For PyTorch axis -3 is one more that broadcasts, unless `enable_gqa`.
    """
    if not enable_gqa and query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return query, key, value
    n_query, n_key, n_value = heads = tuple(
        x.shape[-3] if x.dim() > 2 else 1 for x in (query, key, value)
    )
    if not enable_gqa:
        try:
            (n,) = torch.broadcast_shapes(*((n,) for n in heads))
        except RuntimeError:
            raise ValueError(
                "key, value: expected shapes that broadcast with the query's "
                f"{tuple(query.shape)}, or enable_gqa=True, got {tuple(key.shape)} and "
                f"{tuple(value.shape)}"
            ) from None
        return _expanded(query, n), _expanded(key, n), _expanded(value, n)
    if min(query.dim(), key.dim(), value.dim()) < 3:
        raise ValueError(
            "enable_gqa: expected False where query, key or value has no axis of "
            "heads, got True"
        )
    if n_key == 0 or n_value == 0 or n_query % n_key or n_query % n_value:
        raise ValueError(
            f"key, value: expected numbers of heads that divide the query's {n_query}, "
            f"got {n_key} and {n_value}"
        )
    if n_key != n_value:
        key = key.repeat_interleave(n_query // n_key, -3)
        value = value.repeat_interleave(n_query // n_value, -3)
    return query, key, value


def _expanded(tensor: Tensor, n_heads: int) -> Tensor:
    return tensor.expand(*tensor.shape[:-3], n_heads, *tensor.shape[-2:])
