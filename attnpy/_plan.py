"""A call prepared once and run many times, for decoding loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from attnpy import _attnpy, _checks, _keywords, _repr
from attnpy._options import PUBLIC, Options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from attnpy._explain import Explanation
    from attnpy._typing import Array, AttentionOptions, PlanOptions, PlanResult
else:
    PlanResult = TypeVar("PlanResult")


# Its attributes.
ARRAYS = (
    *("query", "key", "value", "mask", "bias", "key_scale", "value_scale"),
    *("q_offset", "kv_lengths", "page_table", "output", "weights", "lse"),
)

DEFAULTS = dict(zip(Options.__annotations__, Options(), strict=True))


class Plan(_attnpy.Plan[PlanResult]):
    """An `attention` call prepared once, which runs on what its arrays contain then.

    Making the plan checks the arguments and allocates the results. Each call ``plan()``
    then computes from the current contents of the arrays, allocates nothing, and gives
    the same bits as `attention`. Write new queries, keys and lengths into the arrays in
    place.

    Parameters
    ----------
    query, key, value : ndarray
        As for `attention`, but arrays that can be read in place: of one common dtype,
        or int8 with scales, aligned, in native byte order.
    mask, bias, key_scale, value_scale : ndarray, optional
        As for `attention`, also read in place.
    causal, window, scale, softcap, num_threads : optional
        As for `attention`. The default number of threads is the one when the plan is
        made.
    q_offset, kv_lengths, page_table : int or array_like of int, optional
        As for `attention`: the initial numbers. Each call reads the current ones from
        the attribute of this name.
    seq_offsets, sinks : array_like, optional
        As for `attention`: read once, when the plan is made.
    dropout, dropout_seed : optional
        As for `attention`: each call drops the same weights.
    return_weights, return_lse : bool, optional
        As for `attention`.
    out : ndarray, optional
        As for `attention`, but without overlap with the inputs; by default a new array.

    Attributes
    ----------
    query, key, value, mask, bias, key_scale, value_scale : ndarray or None
        The arrays that each call reads.
    q_offset, kv_lengths, page_table : ndarray of int64 or None
        The plan's own copies, in the shapes given; write to them in place.
    output, weights, lse : ndarray or None
        The results, overwritten by each call.

    Raises
    ------
    TypeError
        If an argument has the wrong kind or dtype, or would have to be converted.
    ValueError
        If shapes do not fit together or a number is out of its range; on a call, if
        `kv_lengths` or `page_table` is.
    RuntimeError
        On a call during another thread's call of the same plan, or after an array was
        resized, reshaped or retyped in place.
    MemoryError
        If the results or the scratch memory cannot be allocated.

    See Also
    --------
    attention : the same for a single call; explains every argument.

    Notes
    -----
    A plan runs one call at a time; a second one at the same time is an error. Threads
    may write to its arrays between calls; a call may or may not see what is written
    during it. In free-threaded Python, too, only one thread may use an array while it
    is written to. If an array was resized, reshaped or retyped in place after the plan
    was made, the next call raises an error.

    In annotations ``Plan[...]`` says what a call returns; `Plan` alone means an array:
    ``plan: Plan[tuple[np.ndarray, np.ndarray]]`` is one with `return_lse`.

    Examples
    --------
    Decoding, a token at a time, with 4 query heads on 2 key heads:

    >>> import numpy as np
    >>> import attnpy
    >>> rng = np.random.default_rng(0)
    >>> query = np.zeros((4, 1, 64), np.float32)  # (H, 1, D)
    >>> key, value = np.zeros((2, 2, 100, 64), np.float32)  # (Hk, capacity, D) each
    >>> plan = attnpy.Plan(query, key, value, kv_lengths=0)
    >>> for step in range(3):
    ...     key[:, step], value[:, step] = rng.standard_normal((2, 2, 64))
    ...     query[:, 0] = rng.standard_normal((4, 64))
    ...     plan.kv_lengths[()] = step + 1
    ...     output = plan()  # (H, 1, D), overwritten by the next call
    >>> bool((output == attnpy.attention(query, key, value, kv_lengths=3)).all())
    True
    """

    __slots__ = ("_options",)

    _options: dict[str, Any]

    @overload
    def __new__(
        cls,
        query: Array,
        key: Array,
        value: Array,
        *,
        return_weights: Literal[False] = ...,
        return_lse: Literal[False] = ...,
        **options: Unpack[AttentionOptions],
    ) -> Plan[Array]: ...
    @overload
    def __new__(
        cls,
        query: Array,
        key: Array,
        value: Array,
        *,
        return_weights: Literal[True],
        return_lse: Literal[True],
        **options: Unpack[AttentionOptions],
    ) -> Plan[tuple[Array, Array, Array]]: ...
    @overload
    def __new__(
        cls,
        query: Array,
        key: Array,
        value: Array,
        *,
        return_weights: Literal[True],
        return_lse: Literal[False] = ...,
        **options: Unpack[AttentionOptions],
    ) -> Plan[tuple[Array, Array]]: ...
    @overload
    def __new__(
        cls,
        query: Array,
        key: Array,
        value: Array,
        *,
        return_weights: Literal[False] = ...,
        return_lse: Literal[True],
        **options: Unpack[AttentionOptions],
    ) -> Plan[tuple[Array, Array]]: ...
    @overload
    def __new__(
        cls,
        query: Array,
        key: Array,
        value: Array,
        *,
        return_weights: bool = ...,
        return_lse: Literal[False] = ...,
        **options: Unpack[AttentionOptions],
    ) -> Plan[Array | tuple[Array, Array]]: ...
    @overload
    def __new__(
        cls,
        query: Array,
        key: Array,
        value: Array,
        *,
        return_weights: Literal[False] = ...,
        return_lse: bool = ...,
        **options: Unpack[AttentionOptions],
    ) -> Plan[Array | tuple[Array, Array]]: ...
    @overload
    def __new__(
        cls,
        query: Array,
        key: Array,
        value: Array,
        *,
        return_weights: bool = ...,
        return_lse: bool = ...,
        **options: Unpack[AttentionOptions],
    ) -> Plan[Array | tuple[Array, Array] | tuple[Array, Array, Array]]: ...
    def __new__(
        cls, query: Array, key: Array, value: Array, **options: Unpack[PlanOptions]
    ) -> Any:
        """Check the arguments and allocate the results."""
        _keywords.refuse(options, PUBLIC, "Plan()")
        plan = super().__new__(cls, query, key, value, Options(**options))
        plan._options = {
            name: _repr.Plain(_repr.brief(value))  # without the arrays themselves
            for name, value in options.items()
            if not (name in ARRAYS or _repr.same(value, DEFAULTS[name]))
        }
        return plan

    def explain(self, *, measure: bool = False) -> Explanation:
        """Tell how the next call would be run, as `attnpy.explain`.

        Parameters
        ----------
        measure : bool, optional
            Also run the plan for some tenths of a second, which overwrites its results.

        Returns
        -------
        Explanation
            For what `q_offset`, `kv_lengths` and the mask hold now.

        Raises
        ------
        ValueError, RuntimeError
            As a call.

        Examples
        --------
        >>> import numpy as np
        >>> import attnpy
        >>> query = np.zeros((8, 1, 64), np.float32)
        >>> key, value = np.zeros((2, 2, 4096, 64), np.float32)
        >>> plan = attnpy.Plan(query, key, value, kv_lengths=1000)
        >>> found = plan.explain()
        >>> found.row_tasks, found.blocks, found.scores_visible
        (2, 16, 8000)
        """
        from attnpy import _explain

        found = _explain.Explanation(*self._explain())
        wanted = _checks.flag(measure, "measure")
        return _explain.measured(found, self) if wanted else found

    def __repr__(self) -> str:
        """Return the dtype and shape of each array, and the other options."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        there = {name: x for name, x in arrays.items() if x is not None}
        # A plan that is being made has no options yet.
        return _repr.line(self, {**there, **getattr(self, "_options", {})})
