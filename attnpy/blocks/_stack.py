"""Common parts of encoder and decoder: stacks of layers, residuals and norms."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

import numpy as np

from attnpy import _attnpy, _checks, _repr, _vjp
from attnpy._options import Experts, Kinds, Place
from attnpy._vjp import LayerGradients
from attnpy.blocks.experts import MixtureOfExperts, mixture_arguments
from attnpy.blocks.feed_forward import GATED, FeedForward
from attnpy.cache import KVCache, lent
from attnpy.layers import MultiHeadAttention
from attnpy.layers.multi_head import place_in
from attnpy.norms import LayerNorm, RMSNorm, norm_arguments

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from attnpy import _typing
    from attnpy._options import Norm
    from attnpy._typing import Array, CausalOptions, LayerOptions
    from attnpy._vjp import Pullback
    from attnpy.positions import Rotary

    class VJPOptions(CausalOptions, total=False):
        """The options of an encoder's and of a decoder's vjp."""

        sinks: ArrayLike | None
        seq_offsets: ArrayLike | None
        rotary: Rotary | None

    class CallOptions(VJPOptions, total=False):
        """The options of an encoder's and of a decoder's calls."""

        mixed: bool

    class Choice(TypedDict, total=False):
        """The layers and heads whose weights or states to return."""

        layers: ArrayLike | None
        heads: ArrayLike | None


Layer = TypeVar("Layer", bound="_typing.Model")

AnyNorm = LayerNorm | RMSNorm | None


class ModelOutput(NamedTuple):
    """The result of a layer, stack or model that returns more than its output.

    Attributes
    ----------
    output : ndarray
        The same output as alone, in every bit.
    weights : ndarray, shape (layers, H, L, Lk) or (layers, B, H, L, Lk), or None
        Weights of the self-attention, with `return_weights`; those of a single layer
        have no axis for layers. For packed sequences ``B`` is their number, and L and
        Lk are those of the longest, as in `attnpy.attention`.
    cross_weights : ndarray, shape (layers, H, L, Lc) or (layers, B, H, L, Lc), or None
        The same for the attention to a context, if there is one.
    hidden_states : ndarray, shape (layers + 1, L, E) or (layers + 1, B, L, E), or None
        With `return_hidden_states`: the input of the first layer, and the result of
        each layer. The last one is after the final norm, and equals `output`. With
        `layers` only the results of those layers, ``(len(layers), ...)``.

    Notes
    -----
    Hugging Face's models return the same weights and states layer by layer, as the
    tuples ``attentions``, ``cross_attentions`` and ``hidden_states``.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.blocks import Encoder
    >>> rng = np.random.default_rng(0)
    >>> encoder = Encoder(6, 16, 4, 64, rng=rng)
    >>> x = rng.standard_normal((10, 16), dtype=np.float32)  # ten words
    >>> encoder(x, return_weights=True).weights.shape  # (layers, H, L, L)
    (6, 4, 10, 10)
    >>> result = encoder(
    ...     x, return_weights=True, return_hidden_states=True, layers=[0, -1], heads=2
    ... )
    >>> result.weights.shape, result.hidden_states.shape
    ((2, 1, 10, 10), (2, 10, 16))
    >>> bool((result.output == encoder(x)).all())
    True
    """

    output: Array
    weights: Array | None = None
    cross_weights: Array | None = None
    hidden_states: Array | None = None

    def __repr__(self) -> str:
        """Return the dtype and shape of each array."""
        return _repr.of_fields(self)


class Recorder:
    """Collects the wanted weights and states of a stack's layers while they run."""

    def __init__(
        self,
        num_layers: int,
        return_weights: bool,
        return_hidden_states: bool,
        layers: ArrayLike | None,
        heads: ArrayLike | None,
    ) -> None:
        """Take the options of a stack's call that say what to collect."""
        self.asked = asked(return_weights, heads)
        self.states = _checks.flag(return_hidden_states, "return_hidden_states")
        self.last = num_layers - 1
        self.first = 1 if layers is None else 0  # states before those of the layers
        self.kept: dict[str, Array] = {}
        self.places: dict[int, int] = {}
        if self.asked or self.states:
            chosen = _checks.chosen(layers, "layers", num_layers)
            self.places = {layer: place for place, layer in enumerate(chosen)}
        elif layers is not None:
            raise ValueError(
                "layers: expected None without return_weights=True or "
                "return_hidden_states=True"
            )

    @property
    def records(self) -> bool:
        """Whether anything is wanted."""
        return bool(self.asked) or self.states

    def begin(self, tokens: Array) -> None:
        """Keep the input of the first layer."""
        if self.states and self.first:
            self._keep("hidden_states", 0, tokens)

    def asks(self, layer: int) -> dict[str, Any]:
        """Return the options that make a layer return what to collect from it."""
        return self.asked if layer in self.places else {}

    def take(self, layer: int, result: Array | ModelOutput) -> Array:
        """Keep the wanted parts of a layer's result, and return its output."""
        if not isinstance(result, ModelOutput):
            output = result
        else:
            output, place = result.output, self.places[layer]
            for name in ("weights", "cross_weights"):
                if getattr(result, name) is not None:
                    self._keep(name, place, getattr(result, name))
        if layer < self.last:
            self._keep_states(layer, output)
        return output

    def end(self, output: Array) -> Array | ModelOutput:
        """Return the result of the stack's call."""
        self._keep_states(self.last, output)
        if not (self.asked or self.states):
            return output
        return ModelOutput(output, **self.kept)

    def _keep_states(self, layer: int, states: Array) -> None:
        if self.states and layer in self.places:
            self._keep("hidden_states", self.first + self.places[layer], states)

    def _keep(self, name: str, place: int, array: Array) -> None:
        """Copy an array into that of all layers; the first call makes it."""
        if name not in self.kept:
            n = len(self.places) + (self.first if name == "hidden_states" else 0)
            self.kept[name] = np.zeros((n, *array.shape), array.dtype)
        if array.shape != self.kept[name].shape[1:]:
            raise ValueError(
                f"layers: expected some whose {name} have one shape, got "
                f"{self.kept[name].shape[1:]} and {array.shape}"
            )
        if array.dtype != self.kept[name].dtype:
            dtype = np.promote_types(array.dtype, self.kept[name].dtype)
            self.kept[name] = self.kept[name].astype(dtype)
        self.kept[name][place] = array


def asked(return_weights: bool, heads: ArrayLike | None) -> dict[str, Any]:
    """Return the options that make attention return its weights, if wanted."""
    if _checks.flag(return_weights, "return_weights"):
        return {"return_weights": True, "heads": heads}
    if heads is not None:
        raise ValueError("heads: expected None without return_weights=True")
    return {}


def make_layers(
    make: Callable[[], Layer], num_layers: int, shared: bool
) -> list[Layer]:
    """Return this many new layers, or the same one as many times."""
    num_layers = _checks.count(num_layers, "num_layers")
    _checks.memory("num_layers", np.intp, (num_layers,))  # the list
    first = make()
    if _checks.flag(shared, "shared"):
        return [first] * num_layers
    n_bytes = sum(array.nbytes for array in first.parameters().values())
    _checks.memory("num_layers", np.uint8, (num_layers, n_bytes))
    return [first, *(make() for _ in range(num_layers - 1))]


def make_norm(
    kind: str, dim: int, eps: float, bias: bool, dtype: DTypeLike
) -> LayerNorm | RMSNorm:
    """Return a new norm of this kind."""
    if _checks.one_of(kind, "norm", ("layer", "rms")) == "rms":
        return RMSNorm(dim, eps=eps, dtype=dtype)
    return LayerNorm(dim, eps=eps, bias=bias, dtype=dtype)


def make_final_norm(
    wanted: bool | None, dim: int, options: LayerOptions
) -> LayerNorm | RMSNorm | None:
    """Return a norm like those of the layers, or None; by default with `norm_first`.

    Layers that normalize first do not normalize their sums.
    """
    if wanted is None:
        wanted = options.get("norm_first", False)
    if not _checks.flag(wanted, "final_norm"):
        return None
    return make_norm(
        options.get("norm", "layer"),
        dim,
        options.get("eps", 1e-5),
        options.get("bias", True),
        options.get("dtype", np.float32),
    )


def fields(layer: Any) -> dict[str, Any]:
    """Return the sizes and options of an encoder's or decoder's layer, for its repr."""
    mha, network = layer.self_attention, layer.feed_forward
    experts = {}
    if isinstance(network, MixtureOfExperts):
        experts = {
            "num_experts": len(network.experts),
            "num_experts_per_token": network.num_experts_per_token,
        }
        network = network.experts[0]
    places = "norm_1", "norm_2", "norm_3", "after_1"
    norms = (getattr(layer, name, None) for name in places)
    norm = next(norm for norm in norms if norm is not None)
    embed_dim, size = len(mha.W_q), mha.head_dim
    grouped = mha.num_kv_heads != mha.num_heads
    cross = getattr(layer, "cross_attention", None)
    context_dim = None if cross is None else len(cross.W_k)
    return {
        "embed_dim": embed_dim,
        "num_heads": mha.num_heads,
        "hidden_dim": network.W_1.shape[1],
        "head_dim": size if size * mha.num_heads != embed_dim else None,
        "num_kv_heads": mha.num_kv_heads if grouped else None,
        "norm_first": layer.norm_first,
        "norm": "rms" if isinstance(norm, RMSNorm) else "layer",
        "eps": norm.eps,
        "activation": network.activation,
        **_repr.biases(
            qkv_bias=mha.b_q, out_bias=mha.b_o, feed_forward_bias=network.b_1
        ),
        "causal": getattr(layer, "causal", None),
        "cross_attention": cross is not None if hasattr(layer, "norm_3") else None,
        "context_dim": context_dim if context_dim != embed_dim else None,
        **experts,
    }


def stack_fields(stack: Any) -> dict[str, Any]:
    """Return those of a stack: the number of layers, and those of its layers."""
    first = stack.layers[0]
    has_norm = stack.norm is not None
    return {
        "num_layers": len(stack.layers),
        **_repr.differing(type(first), fields(first)),
        "shared": (len(stack.layers) > 1 and stack.layers[1] is first) or None,
        "final_norm": has_norm if has_norm != first.norm_first else None,
    }


def own_options(layer: Any, options: Mapping[str, object]) -> Any:
    """Return the options that a layer sets itself; a call must not pass them."""
    own = {"window": layer.window, "scale": layer.scale, "rotary": layer.rotary}
    own = {name: value for name, value in own.items() if value is not None}
    for name in own:
        if options.get(name) is not None:
            raise ValueError(f"{name}: expected None, as the layer has its own")
    return own


def check_no_relative(options: Mapping[str, object]) -> None:
    """Refuse gradients of positions that are products with queries and keys."""
    if options.get("relative") is not None:
        raise ValueError(
            "relative: expected None, as disentangled positions have no gradients here"
        )


def with_own(
    layer: Any, options: dict[str, Any]
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Return the options of a call with those of the layer, and the latter."""
    window, scale, rotary = own = layer.window, layer.scale, layer.rotary
    if not (window is None and scale is None and rotary is None):
        options = {**options, **own_options(layer, options)}
    return options, own


def normalized(norm: AnyNorm, tokens: Array, num_threads: int | None) -> Array:
    """Return tokens after a norm, if there is one."""
    return tokens if norm is None else norm(tokens, num_threads=num_threads)


def taken_along(
    norm: AnyNorm, tokens: Array, num_threads: int | None
) -> tuple[Array, Norm | None]:
    """Return tokens, and the norm of them that is left to the C module, if any.

    It does not change their dtype, for which tables of positions are made.
    """
    if norm is not None:
        arguments = arguments_for(norm, tokens.dtype)
        if arguments is not None:
            return tokens, arguments
    return normalized(norm, tokens, num_threads), None


def arguments_for(norm: LayerNorm | RMSNorm, dtype: np.dtype[Any]) -> Norm | None:
    """Return a norm's arguments for the C module; None if it may change the dtype."""
    own = getattr(norm.weight, "dtype", None) if is_known(norm) else None
    if own is None:
        return None
    half = own.itemsize == 2 and dtype == np.float32
    return norm_arguments(norm, "norm") if own == dtype or half else None


def residual(
    tokens: Array,
    sublayer: Callable[[Array, AnyNorm, Array | None], Array],
    norm: AnyNorm,
    norm_first: bool,
    norm_after: AnyNorm,
    scale: float | None,
    num_threads: int | None,
) -> Array:
    """Add a sublayer's result to the tokens, with the norm before or after it, if any.

    With `norm_after` the sublayer's result is normalized, too, and multiplied by
    `scale`, if there is one. The sublayer takes its input, a norm of that, and a
    residual to add to its result.
    """
    before = norm if norm_first else None
    if norm_first and norm_after is None and scale is None:
        return sublayer(tokens, before, tokens)
    result = sublayer(tokens, before, None)
    if norm_after is not None:
        result = norm_after(result, num_threads=num_threads)
    if scale is not None:
        result = scaled(result, scale)
    if norm is None or norm_first:
        return tokens + result
    return norm(result, tokens, num_threads=num_threads)


# What parts of layers do when they are called, unless someone has replaced it.
PARTS: tuple[Any, ...] = (
    *(MultiHeadAttention, FeedForward, MixtureOfExperts, LayerNorm, RMSNorm),
)
CALLS = {part: part.__call__ for part in PARTS}


def is_known(part: object) -> bool:
    """Tell whether a call of a part does what this package says, and nothing else."""
    kind: Any = type(part)
    return CALLS.get(kind) is kind.__call__


def are_unchanged() -> bool:
    """Tell whether nobody has replaced the calls of any part."""
    return all(kind.__call__ is call for kind, call in CALLS.items())


def kinds(layer: type, of_encoder: bool) -> Kinds:
    """Return what the C module has to know to read layers of a class."""
    return Kinds(
        *(layer, of_encoder, MultiHeadAttention, FeedForward, LayerNorm, RMSNorm),
        *(KVCache, dict[str, str](GATED), _other_network),
    )


def _other_network(network: object) -> Experts | None:
    """Return the arguments of a network for the C module, if that is a mixture."""
    return mixture_arguments(network) if type(network) is MixtureOfExperts else None


def places(
    layers: tuple[Any, ...],
    kinds: Kinds,
    tokens: Array,
    caches: Sequence[KVCache | None],
    are_plain: bool,
    options: dict[str, Any],
) -> tuple[Place, ...] | None:
    """Return where tokens stand in each layer; None if one is not known.

    Those with the same options share a place, in the first one's cache, if all caches
    `are_plain`; the C module makes sure that this is also the place in theirs.
    """
    found: list[tuple[tuple[Any, ...], Place]] = []
    places: list[Place] = []
    for layer, cache in zip(layers, caches, strict=True):
        if type(layer) is not kinds.layer:
            return None
        mha = layer.self_attention
        sinks = getattr(mha, "sinks", None)
        own = layer.window, layer.scale, layer.rotary, sinks is None
        place = next(
            (place for its, place in found if all(map(operator.is_, its, own))), None
        )
        if place is None:
            if not is_known(mha):
                return None
            known, _ = with_own(layer, options)
            own_cache = cache if cache is None or not are_plain else lent(cache)
            place = place_in(mha, own_cache, tokens, known)
            if are_plain:
                found.append((own, place))
        if sinks is not None:  # each layer has its own then
            place = place._replace(options=place.options._replace(sinks=sinks))
        places.append(place)
    return tuple(places)


def run_together(
    stack: Any,
    kinds: Kinds,
    tokens: Array,
    caches: Sequence[KVCache | None],
    are_plain: bool,
    mixed: bool,
    options: dict[str, Any],
) -> tuple[Array, tuple[Place, ...]] | None:
    """Run all layers of a stack and its norm in one call of C; None if it cannot be.

    Return the result, and where the tokens stood. All caches are KVCaches if they
    `are_plain`; else they are copies to write to. `options` are the attention's.
    """
    layers, norm = tuple(stack.layers), stack.norm
    found = places(layers, kinds, tokens, caches, are_plain, options)
    if found is None or not (norm is None or is_known(norm)):
        return None
    own = tuple(caches) if are_plain else (None,) * len(layers)
    groups = _attnpy.read_layers(tokens, layers, own, found, kinds, mixed)
    if groups is None:
        return None
    last = None if norm is None else norm_arguments(norm, "norm")
    result = _attnpy.stack(tokens, groups, last, mixed, options.get("num_threads"))
    return None if result is None else (result, found)


def run_without_caches(
    stack: Any, kinds: Kinds, x: Array, options: dict[str, Any]
) -> Array | None:
    """Run all layers in one call of C; None where that cannot be, or is wrong.

    What is wrong is said best by the layers, one after the other.
    """
    told, none = dict(options), [None] * len(stack.layers)
    if type(x) is not np.ndarray or not are_unchanged():
        return None
    try:
        mixed = _checks.flag(told.pop("mixed", False), "mixed")
        found = run_together(stack, kinds, x, none, True, mixed, told)
    except (TypeError, ValueError):
        return None
    return None if found is None else found[0]


def check_parallel(layer: Any) -> None:
    """Raise an error if a layer cannot be `parallel`, but should be."""
    if not layer.parallel:
        return
    for name in ("cross_attention", "after_1", "after_3", "residual_scale"):
        if getattr(layer, name) is not None:
            raise ValueError(f"parallel: expected False with {name}, got True")
    if not layer.norm_first or layer.norm_1 is None:
        raise ValueError("parallel: expected False without norm_first, got True")


def scaled(array: Array, scale: float) -> Array:
    """Return an array times a number, in the array's dtype."""
    product: Array = array * np.asarray(scale, array.dtype)
    return product


class Sublayer(NamedTuple):
    """A part of a layer whose result is added to the tokens, and its norms by name."""

    name: str
    vjp: Callable[[Array, Array | None], tuple[Array, Pullback]]  # tokens, residual
    norm: str
    norm_after: str | None = None

    def step(self, layer: Any, num_threads: int | None) -> Step:
        """Return the result of `residual` with it, and the pullback."""
        norm, norm_first = getattr(layer, self.norm), layer.norm_first
        after = self.norm_after or ""
        norm_after = getattr(layer, after) if after else None
        scale: float | None = getattr(layer, "residual_scale", None)

        def run(tokens: Array) -> tuple[Array, Back]:
            pulls: dict[str, Pullback] = {}  # in the order in which they ran
            result = tokens
            if norm_first and norm is not None:
                result, pulls[self.norm] = norm.vjp(tokens, num_threads=num_threads)
            is_added = norm_first and norm_after is None and scale is None
            result, pulls[self.name] = self.vjp(result, tokens if is_added else None)
            if norm_after is not None:
                result, pulls[after] = norm_after.vjp(result, num_threads=num_threads)
            if scale is not None:
                result = scaled(result, scale)
                pulls["scale"] = lambda grad: LayerGradients(
                    scaled(np.asarray(grad), scale), {}
                )
            if not norm_first and norm is not None:
                result, pulls[self.norm] = norm.vjp(
                    result, tokens, num_threads=num_threads
                )
            elif not is_added:
                result = tokens + result

            def back(grad: Array) -> tuple[Array, dict[str, LayerGradients]]:
                found: dict[str, LayerGradients] = {}
                of_tokens = of_result = grad
                for name, pullback in reversed(pulls.items()):
                    found[name] = pullback(of_result)
                    of_result = found[name].x
                    if name == self.norm and not norm_first:
                        of_tokens = of_result  # the norm is of the sum
                return of_tokens + of_result, found

            return result, back

        return run


Back = Callable[["Array"], "tuple[Array, dict[str, LayerGradients]]"]
Step = Callable[["Array"], "tuple[Array, Back]"]


def parallel_vjp(
    layer: Any, attention: Sublayer, network: Sublayer, num_threads: int | None
) -> Step:
    """Return the step of two sublayers that read the same tokens, and its pullback.

    Without a norm of its own the network reads what the attention does.
    """

    def run(tokens: Array) -> tuple[Array, Back]:
        given, of_first = layer.norm_1.vjp(tokens, num_threads=num_threads)
        result, of_attention = attention.vjp(given, tokens)
        of_second: Pullback | None = None
        if layer.norm_3 is not None:
            given, of_second = layer.norm_3.vjp(tokens, num_threads=num_threads)
        result, of_network = network.vjp(given, result)

        def back(grad: Array) -> tuple[Array, dict[str, LayerGradients]]:
            found = {
                attention.name: of_attention(grad),
                network.name: of_network(grad),
            }
            of_tokens, of_given = grad, found[attention.name].x
            if of_second is None:
                of_given = of_given + found[network.name].x
            else:
                found["norm_3"] = of_second(found[network.name].x)
                of_tokens = of_tokens + found["norm_3"].x
            found["norm_1"] = of_first(of_given)
            return of_tokens + found["norm_1"].x, found

        return result, back

    return run


def chain_vjp(
    owner: object, tokens: Array, steps: Iterable[Step]
) -> tuple[Array, Pullback]:
    """Run steps one after the other; the pullback goes the other way.

    A step returns its result and a pullback, from the result's gradient to those of the
    tokens and of parts of the owner, by name.
    """
    backs = []
    for step in steps:
        tokens, back = step(tokens)
        backs.append(back)
    output = tokens
    checked = _vjp.of_output(output)

    def pullback(grad_output: ArrayLike) -> LayerGradients:
        grad = checked(grad_output)
        collected = _vjp.Collector(owner)
        total = dict.fromkeys(("context", "bias", "sinks"))
        for back in reversed(backs):
            grad, parts = back(grad)
            for part, found in parts.items():
                collected.add(found.parameters, f"{part}.")
                for name, known in total.items():
                    total[name] = _vjp.added(known, getattr(found, name))
        return LayerGradients(grad, collected.parameters(), **total)

    return output, pullback


def stack_vjp(
    stack: Any,
    tokens: Array,
    layer_vjp: Callable[[Any, Array], tuple[Array, Pullback]],
    num_threads: int | None,
) -> tuple[Array, Pullback]:
    """Run the layers of a stack and its norm; return the output and the pullback."""

    def step(name: str, vjp: Callable[[Array], tuple[Array, Pullback]]) -> Step:
        def run(tokens: Array) -> tuple[Array, Back]:
            output, pullback = vjp(tokens)

            def back(grad: Array) -> tuple[Array, dict[str, LayerGradients]]:
                found = pullback(grad)
                return found.x, {name: found}

            return output, back

        return run

    steps = [
        step(f"layers.{i}", functools.partial(layer_vjp, layer))
        for i, layer in enumerate(stack.layers)
    ]
    if stack.norm is not None:
        norm_vjp = functools.partial(stack.norm.vjp, num_threads=num_threads)
        steps.append(step("norm", norm_vjp))
    return chain_vjp(stack, tokens, steps)
