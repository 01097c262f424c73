"""Texts to a vector for each token, as ColBERT has them, and their comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, overload

import numpy as np

from attnpy import (
    _checks,
    _dtypes,
    _keywords,
    _parameters,
    _pickles,
    _progress,
    _repr,
)
from attnpy._linear import linear
from attnpy.checkpoints.reading import judged_elsewhere
from attnpy.models import (
    _multi_vector_folder,
    _pooling,
    _sentence_folder,
    _sentence_saving,
    _similarity,
    _texts,
)
from attnpy.models.bert import BertEncoder

if TYPE_CHECKING:
    import os

    from numpy.typing import ArrayLike, DTypeLike
    from typing_extensions import Unpack

    from attnpy._typing import Array
    from attnpy.models._sentence_folder import Step
    from attnpy.models._similarity import Ranked

    class EncodeCall(TypedDict, total=False):
        """The options of a call."""

        batch_size: int
        prompt: str | None
        prompt_name: str | None
        progress: bool | None
        num_threads: int | None


# The prompts of queries and of documents by their names, the first one that there is.
QUERY, DOCUMENT = ("query",), ("document", "passage", "corpus")


@_keywords.answering
class MultiVectorEncoder:
    """Turns texts into a vector for each token, for late interaction: ColBERT.

    `from_pretrained` reads folders of ColBERT's authors, of PyLate and of
    sentence-transformers.

    Parameters
    ----------
    model : BertEncoder
        Computes the tokens' vectors.
    tokenizer : tokenizers.Tokenizer
        Turns texts into tokens. Its truncation and padding are turned off.
    steps : sequence of callable, optional
        What follows the model, for each token: `_pooling.Dense` and
        `_pooling.Normalize` of folders.
    query_prefix, document_prefix : str, optional
        A token of the tokenizer, which becomes the second one of each query and of each
        document; by default none.
    query_length, document_length : int, optional
        The most tokens of a query and of a document, the prefix among them; longer
        texts are truncated. By default the number of the model's positions.
    expansion_token : str, optional
        A token of the tokenizer, usually ``[MASK]``, with which shorter queries are
        filled up to `query_length`. By default they are not filled.
    attend_to_expansion_tokens : bool, optional
        All tokens attend to those that fill a query. By default only the others are
        attended to, and the vectors of these do not depend on `query_length`.
    skiplist_words : sequence of str, optional
        Tokens whose vectors a document goes without, usually punctuation; words that
        are no tokens have no effect.
    truncation_side : {"right", "left"}, optional
        At which end longer texts are cut.
    prompts : mapping of str to str, optional
        Texts to put before others, by name: "query" before queries, and the first of
        "document", "passage" and "corpus" before documents.
    similarity_fn_name : {"maxsim", "meanmaxsim"}, optional
        What `similarity` and `rank` compute: the sum of `maxsim`, or the mean.

    Attributes
    ----------
    model, tokenizer, steps, query_prefix, document_prefix, query_length,
    document_length, expansion_token, attend_to_expansion_tokens, skiplist_words,
    truncation_side, prompts, similarity_fn_name
        As given.
    embed_dim : int
        `D`, the size of the resulting vectors.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range.

    Notes
    -----
    From Khattab and Zaharia, "ColBERT: Efficient and Effective Passage Search via
    Contextualized Late Interaction over BERT" (2020), and Santhanam et al.,
    "ColBERTv2: Effective and Efficient Retrieval via Lightweight Late Interaction"
    (2022). Every token of a query has a vector, those that fill it included. A text's
    vectors have the same bits whatever texts are encoded with it, in any batches and on
    any number of threads.

    Examples
    --------
    >>> import numpy as np
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from attnpy.models import BertEncoder, MultiVectorEncoder
    >>> words = ["[UNK]", "[MASK]", "[Q]", "[D]", "cats", "dogs", "sleep", "bark", "."]
    >>> vocab = {word: i for i, word in enumerate(words)}
    >>> tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> rng = np.random.default_rng(0)
    >>> model = BertEncoder(2, 16, 4, 64, vocab_size=9, rng=rng)
    >>> encoder = MultiVectorEncoder(
    ...     model,
    ...     tokenizer,
    ...     query_prefix="[Q]",
    ...     document_prefix="[D]",
    ...     query_length=8,
    ...     expansion_token="[MASK]",
    ...     skiplist_words=".",
    ... )
    >>> query = encoder.encode_queries("dogs bark")
    >>> documents = encoder.encode_documents(["dogs bark.", "cats sleep"])
    >>> query.shape, documents[0].shape
    ((8, 16), (3, 16))
    >>> encoder.similarity(query, documents).shape
    (2,)
    >>> encoder.rank("dogs bark", ["cats sleep", "dogs bark."])[0]["corpus_id"]
    1
    """

    model: BertEncoder
    tokenizer: Any
    steps: tuple[Step, ...]
    query_prefix: str
    document_prefix: str
    query_length: int
    document_length: int
    expansion_token: str | None
    attend_to_expansion_tokens: bool
    skiplist_words: tuple[str, ...]
    truncation_side: str
    prompts: dict[str, str]
    similarity_fn_name: str
    embed_dim: int

    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle or a copy, if texts can be encoded with it."""
        _pickles.set_state(self, state)
        with _pickles.judged(self):
            self._check_parts()
            if self.embed_dim != (size := self._size()):
                raise ValueError(f"embed_dim: expected {size}, got {self.embed_dim}")

    def _shown(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "embed_dim": self.embed_dim,
            "steps": list(self.steps) or None,
            "query_prefix": self.query_prefix or None,
            "document_prefix": self.document_prefix or None,
            "query_length": self.query_length,
            "document_length": self.document_length,
            "expansion_token": self.expansion_token,
            "attend_to_expansion_tokens": self.attend_to_expansion_tokens or None,
            "skiplist_words": len(self.skiplist_words) or None,
            "prompts": list(self.prompts) or None,
            "similarity_fn_name": self.similarity_fn_name,
        }

    __repr__ = _repr.shows(_shown)

    def __init__(
        self,
        model: BertEncoder,
        tokenizer: Any,
        *,
        steps: Sequence[Step] = (),
        query_prefix: str = "",
        document_prefix: str = "",
        query_length: int | None = None,
        document_length: int | None = None,
        expansion_token: str | None = None,
        attend_to_expansion_tokens: bool = False,
        skiplist_words: Sequence[str] = (),
        truncation_side: Literal["right", "left"] = "right",
        prompts: Mapping[str, str] | None = None,
        similarity_fn_name: str = "maxsim",
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.query_prefix = _texts.text(query_prefix, "query_prefix")
        self.document_prefix = _texts.text(document_prefix, "document_prefix")
        self.expansion_token = expansion_token
        self.attend_to_expansion_tokens = _checks.flag(
            attend_to_expansion_tokens, "attend_to_expansion_tokens"
        )
        self._check_parts()
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.truncation_side = _checks.one_of(
            truncation_side, "truncation_side", ("right", "left")
        )
        self.steps = _pooling.checked_steps(steps)
        n_special = tokenizer.num_special_tokens_to_add(is_pair=False)
        for name, length, prefix in (
            ("query_length", query_length, query_prefix),
            ("document_length", document_length, document_prefix),
        ):
            most = model.max_tokens if length is None else length
            n_own = n_special + bool(prefix)
            checked = _sentence_folder.check_length(most, name, model.max_tokens, n_own)
            setattr(self, name, checked)
        self.skiplist_words = tuple(
            _texts.text(word, f"skiplist_words[{i}]")
            for i, word in enumerate(
                _checks.items(skiplist_words, "skiplist_words", "words")
            )
        )
        self.prompts = dict(
            _checks.mapping({} if prompts is None else prompts, "prompts")
        )
        for name in self.prompts:
            _texts.prompt(self.prompts, None, None, name)
        self.similarity_fn_name = _checks.one_of(
            similarity_fn_name, "similarity_fn_name", _multi_vector_folder.SIMILARITIES
        )
        self.embed_dim = self._size()

    def _check_parts(self) -> None:
        """Require a model and a tokenizer that has the tokens named."""
        if not isinstance(self.model, BertEncoder):
            raise TypeError(
                f"model: expected a BertEncoder, got {type(self.model).__name__}"
            )
        _texts.check_tokenizer(self.tokenizer)
        for name in ("query_prefix", "document_prefix", "expansion_token"):
            token = getattr(self, name)
            if token not in ("", None):
                _token(self.tokenizer, token, name)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        query_prefix: str | None = None,
        document_prefix: str | None = None,
        query_length: int | None = None,
        document_length: int | None = None,
        attend_to_expansion_tokens: bool | None = None,
        skiplist_words: Sequence[str] | None = None,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["int8", "int4"] | None = None,
        activations: Literal["float", "int8"] = "float",
        progress: bool | None = None,
    ) -> MultiVectorEncoder:
        """Read an encoder from a folder.

        Parameters
        ----------
        folder : str or path
            With a model of the families of `BertEncoder`, ``tokenizer.json``, and
            either ``modules.json``, as PyLate and sentence-transformers write it, or a
            projection among the weights of the class ``HF_ColBERT`` and
            ``artifact.metadata``, as in colbertv2.0. Settings are honoured, or refused
            by name.
        query_prefix, document_prefix, query_length, document_length : optional
            Override those of the folder.
        attend_to_expansion_tokens, skiplist_words : optional
            Override those of the folder.
        dtype, packed, weights, activations, progress
            As in `BertEncoder.from_pretrained`. Dense modules keep their numbers.

        Returns
        -------
        MultiVectorEncoder

        Raises
        ------
        ImportError, FileNotFoundError
            If the tokenizers or safetensors package is not installed, or a file is
            missing.
        TypeError, ValueError
            If files ask for something unsupported, or do not fit together.

        Notes
        -----
        Settings that ``artifact.metadata`` leaves out are those of colbert-ai. It
        leaves punctuation out by the first token of each sign, while here, as in PyLate
        and sentence-transformers, it is the token that is the sign: for BERT's
        vocabularies that is the same.
        """
        recipe = _multi_vector_folder.read(folder)
        tokenizer, side = _sentence_folder.tokenizer(
            recipe.model_folder, recipe.lower_case
        )
        settings = dict(recipe.settings)
        for name, value in (
            ("query_prefix", query_prefix),
            ("document_prefix", document_prefix),
            ("query_length", query_length),
            ("document_length", document_length),
            ("attend_to_expansion_tokens", attend_to_expansion_tokens),
            ("skiplist_words", skiplist_words),
        ):
            if value is not None:
                settings[name] = value
        model = BertEncoder.from_pretrained(
            recipe.model_folder,
            dtype=dtype,
            packed=packed,
            weights=weights,
            activations=activations,
            ignore_head=True,  # the vectors of tokens are all that is needed
            progress=progress,
        )
        for name in ("query_length", "document_length"):
            if settings.get(name) is None:
                settings[name] = _sentence_folder.longest(
                    recipe.max_length, recipe.is_explicit, None, model.max_tokens
                )
        return cls(
            model, tokenizer, steps=recipe.steps, truncation_side=side, **settings
        )

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that PyLate, sentence-transformers and `from_pretrained` read.

        Parameters
        ----------
        folder : str or path
            Created if it does not exist. Files of these names are replaced together:
            those of the model's own `save_pretrained`, ``tokenizer.json``,
            ``tokenizer_config.json``, ``modules.json``, ``sentence_bert_config.json``,
            ``config_sentence_transformers.json``, and those of the modules after the
            model, in folders such as ``1_Dense``.

        Raises
        ------
        TypeError
            If `folder` is no path.
        ValueError
            If the model cannot be saved, as its own `save_pretrained` says; if `steps`
            are other than some Dense and then Normalize, as PyLate has them.

        Notes
        -----
        Read again, the folder gives the same bits, except for a quantised model, which
        is saved with the numbers that its integers stand for. PyLate puts `prompts`
        before texts only where they are named in a call.
        """
        _sentence_saving.save_multi_vector(self, folder)

    @overload
    def encode_queries(  # type: ignore[overload-overlap]
        self, texts: str, **options: Unpack[EncodeCall]
    ) -> Array: ...
    @overload
    def encode_queries(
        self, texts: Iterable[str], **options: Unpack[EncodeCall]
    ) -> list[Array]: ...
    def encode_queries(
        self,
        texts: str | Iterable[str],
        *,
        batch_size: int = 32,
        prompt: str | None = None,
        prompt_name: str | None = None,
        progress: bool | None = None,
        num_threads: int | None = None,
    ) -> Array | list[Array]:
        """Return the vectors of queries.

        Parameters
        ----------
        texts : str or iterable of str
            One query, or any number of them, even from a generator.
        batch_size : int, optional
            How many texts of similar lengths go through the model at a time. Changes no
            bit of the result.
        prompt : str, optional
            A text to put before each; "" for none, if the encoder has one.
        prompt_name : str, optional
            The name of one of `prompts`, instead of `prompt`. By default "query", if
            there is one.
        progress : bool, optional
            As in `SentenceEncoder.encode`.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        list of ndarray, shape (L, D), or ndarray for one query
            In the order given, a row for each token: float32, or float64 for a model of
            that. With an `expansion_token` `L` is `query_length`.

        Raises
        ------
        ImportError
            If `progress` is True, and tqdm is not installed.
        TypeError, ValueError
            If an argument has the wrong kind, or is out of its range.
        """
        side = _Side(
            QUERY, self.query_prefix, self.query_length, self.expansion_token, ()
        )
        how = prompt, prompt_name, batch_size, progress, num_threads
        return self._encode(texts, side, *how)

    @overload
    def encode_documents(  # type: ignore[overload-overlap]
        self, texts: str, **options: Unpack[EncodeCall]
    ) -> Array: ...
    @overload
    def encode_documents(
        self, texts: Iterable[str], **options: Unpack[EncodeCall]
    ) -> list[Array]: ...
    def encode_documents(
        self,
        texts: str | Iterable[str],
        *,
        batch_size: int = 32,
        prompt: str | None = None,
        prompt_name: str | None = None,
        progress: bool | None = None,
        num_threads: int | None = None,
    ) -> Array | list[Array]:
        """Return the vectors of documents, without those of `skiplist_words`.

        Parameters
        ----------
        texts : str or iterable of str
            One document, or any number of them, even from a generator.
        batch_size, prompt, prompt_name, progress, num_threads
            As in `encode_queries`, but for the prompts' names: by default the first of
            "document", "passage" and "corpus" that there is.

        Returns
        -------
        list of ndarray, shape (L, D), or ndarray for one document
            As `encode_queries`, for the tokens that are left.

        Raises
        ------
        ImportError, TypeError, ValueError
            As `encode_queries`.
        """
        side = _Side(
            DOCUMENT,
            self.document_prefix,
            self.document_length,
            None,
            self.skiplist_words,
        )
        how = prompt, prompt_name, batch_size, progress, num_threads
        return self._encode(texts, side, *how)

    def similarity(
        self,
        queries: ArrayLike | Sequence[ArrayLike],
        documents: ArrayLike | Sequence[ArrayLike],
        *,
        num_threads: int | None = None,
    ) -> Array:
        """Return the scores of queries and documents, by `similarity_fn_name`.

        Parameters
        ----------
        queries, documents : array_like, shape (L, D), or sequence of them
            From `encode_queries` and `encode_documents`.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (n, m)
            The score of each query with each document, as `maxsim` has it, without the
            axis of an argument that is the vectors of a single text.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong kind or shape.
        """
        own, is_one_query = _several(queries, "queries")
        others, is_one = _several(documents, "documents")
        mean = self.similarity_fn_name == "meanmaxsim"
        scores = np.zeros((len(own), len(others)), self._dtype)
        found = []
        for i, query in enumerate(own):
            name = "queries" if is_one_query else f"queries[{i}]"
            with _checks.renamed(query=name):
                found.append(maxsim(query, others, mean=mean, num_threads=num_threads))
        scores = np.stack(found) if found else scores
        scores = scores[0] if is_one_query else scores
        return scores[..., 0] if is_one else scores

    def rank(
        self,
        query: str,
        documents: Iterable[str] | Sequence[Array],
        top_k: int | None = None,
        *,
        return_documents: bool = False,
        batch_size: int = 32,
        progress: bool | None = None,
        num_threads: int | None = None,
    ) -> list[Ranked]:
        """Put documents in the order in which they answer a query.

        Parameters
        ----------
        query : str
        documents : iterable of str, or sequence of ndarray of shape (L, D)
            Texts, or vectors from `encode_documents`, which need not be computed again.
        top_k : int, optional
            How many to return, at most; by default all.
        return_documents : bool, optional
            Return the documents' texts as well.
        batch_size, progress, num_threads
            As in `encode_documents`.

        Returns
        -------
        list of dict
            The best first, as `CrossEncoder.rank` has it: each with its number in
            `documents`, ``"corpus_id"``; its ``"score"``, a float; and its ``"text"``
            with `return_documents`. Documents of equal scores keep their order.

        Raises
        ------
        ImportError, TypeError, ValueError
            As `encode_documents`.
        """
        if top_k is not None:
            top_k = _checks.count(top_k, "top_k")
        with_texts = _checks.flag(return_documents, "return_documents")
        own = self.encode_queries(_texts.text(query, "query"), num_threads=num_threads)
        texts: list[str] = []
        if isinstance(documents, Sequence) and any(
            isinstance(each, np.ndarray) for each in documents[:1]
        ):
            if with_texts:
                raise ValueError(
                    "return_documents: expected False for documents that are vectors, "
                    "got True"
                )
            vectors = [*documents]
        else:
            for window in _texts.windows(
                documents, _texts.WINDOW, "documents", _texts.text
            ):
                texts += window
            vectors = self.encode_documents(
                texts, batch_size=batch_size, progress=progress, num_threads=num_threads
            )
        scores = self.similarity(own, vectors, num_threads=num_threads).tolist()
        return _similarity.ranked(scores, top_k, texts if with_texts else None)

    @property
    def max_length(self) -> int:
        """The most tokens of a text, query or document."""
        return max(self.query_length, self.document_length)

    @property
    def _dtype(self) -> np.dtype[Any]:
        return _dtypes.arithmetic(self.model.token_embedding.dtype)

    def _size(self) -> int:
        return _pooling.size_after(self.steps, self.model.embed_dim, self._dtype)

    def _encode(
        self,
        texts: str | Iterable[str],
        side: _Side,
        prompt: str | None,
        prompt_name: str | None,
        batch_size: int,
        progress: bool | None,
        num_threads: int | None,
    ) -> Array | list[Array]:
        size = _checks.count(batch_size, "batch_size")
        usual = next((name for name in side.prompts if name in self.prompts), None)
        front = _texts.prompt(self.prompts, usual, prompt, prompt_name)
        is_one = isinstance(texts, str)
        given: Iterable[str] = [texts] if isinstance(texts, str) else texts
        found: list[Array] = []
        with _progress.bar(progress, _progress.total(given), "text") as done:
            for window in _texts.windows(
                given, size * _texts.WINDOW, "texts", _texts.text
            ):
                tokens, seen = self._tokens(
                    [front + text for text in window], side, num_threads
                )
                rows: list[Any] = [None] * len(tokens)
                for chosen, states in _texts.token_vectors(
                    self.model, tokens, size, num_threads, seen
                ):
                    kept = [self._kept(tokens[i], side) for i in chosen]
                    vectors = self._finished(states, kept, num_threads)
                    for i, each in zip(chosen, vectors, strict=True):
                        rows[i] = each
                    done(len(chosen))
                found += rows
        return found[0] if is_one else found

    def _tokens(
        self, texts: list[str], side: _Side, num_threads: int | None
    ) -> tuple[list[list[int]], list[int] | None]:
        """Return the tokens of texts, and how many of each, if not all, are seen.

        They are truncated here and not by the tokenizer, which has one length.
        """
        codes = _texts.encoded(self.tokenizer, texts, num_threads, special=False)
        n_special = self.tokenizer.num_special_tokens_to_add(is_pair=False)
        prefix = []
        if side.prefix:
            prefix = [_token(self.tokenizer, side.prefix, "prefix")]
        room = side.length - n_special - len(prefix)
        tokens = []
        with judged_elsewhere("tokenizer", "one that makes tokens of these texts"):
            for code in codes:
                code.truncate(room, direction=self.truncation_side)
                ids = self.tokenizer.post_process(code).ids
                tokens.append([*ids[:1], *prefix, *ids[1:]])
        if side.filler is None:
            return tokens, None
        filler = _token(self.tokenizer, side.filler, "expansion_token")
        seen = None if self.attend_to_expansion_tokens else [*map(len, tokens)]
        return [ids + [filler] * (side.length - len(ids)) for ids in tokens], seen

    def _kept(self, ids: list[int], side: _Side) -> Array:
        """Return which tokens have vectors in the result."""
        known = (self.tokenizer.token_to_id(word) for word in side.skipped)
        skipped = [number for number in known if number is not None]
        return ~np.isin(ids, skipped)

    def _finished(
        self, states: list[Array], kept: list[Array], num_threads: int | None
    ) -> list[Array]:
        """Return the vectors of texts after the steps, of the tokens that are kept."""
        rows = np.concatenate(
            [text[which] for text, which in zip(states, kept, strict=True)]
        )
        for step in self.steps:
            rows = step(rows, num_threads)
        ends = np.cumsum([which.sum() for which in kept])
        return [part.copy() for part in np.split(rows, ends[:-1])]


@_keywords.answering
def maxsim(
    query: ArrayLike,
    documents: Any,
    *,
    mean: bool = False,
    num_threads: int | None = None,
) -> Any:
    r"""Return the scores of late interaction: each query token's best match, summed.

    Parameters
    ----------
    query : array_like, shape (Lq, D)
        A vector for each token, usually of length 1.
    documents : array_like, shape (L, D), or sequence of them
        The vectors of one document, or of several of any lengths.
    mean : bool, optional
        Divide by `Lq`, as BGE-M3 does.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    float, or ndarray of shape (n,) for n documents
        In float32, or float64 if an array is of that. A document without tokens has
        -inf.

    Raises
    ------
    TypeError, ValueError
        If an array has the wrong kind or shape.

    Notes
    -----
    .. math:: \sum_i \max_j q_i \cdot d_j

    from Khattab and Zaharia, "ColBERT: Efficient and Effective Passage Search via
    Contextualized Late Interaction over BERT" (2020). A document's score has the same
    bits alone and among others.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import maxsim
    >>> query = np.eye(3)
    >>> maxsim(query, np.eye(3)[:2])
    2.0
    >>> maxsim(query, [np.eye(3), np.eye(3)[:1]], mean=True)
    array([1.        , 0.33333333])
    """
    mean = _checks.flag(mean, "mean")
    own = _similarity.vectors(query, "query")
    if own.ndim != 2 or len(own) == 0:
        raise ValueError(f"query: expected (Lq, D) with a token, got {own.shape}")
    several, is_one = _several(documents, "documents")
    scores = []
    for i, document in enumerate(several):
        name = "documents" if is_one else f"documents[{i}]"
        tokens = _similarity.vectors(document, name, own.shape[1])
        if tokens.ndim != 2:
            raise ValueError(
                f"{name}: expected (L, {own.shape[1]}), got {tokens.shape}"
            )
        products = linear(own, tokens.T, num_threads=num_threads)
        best = np.maximum.reduce(products, axis=1, initial=-np.inf)
        total = np.add.reduce(best)
        scores.append(total / total.dtype.type(len(own)) if mean else total)
    if is_one:
        return float(scores[0])
    return np.array(scores, np.result_type(own.dtype, *scores))


class _Side(NamedTuple):
    """How queries or documents become tokens."""

    prompts: tuple[str, ...]
    prefix: str
    length: int
    filler: str | None
    skipped: tuple[str, ...]


def _token(tokenizer: Any, token: str, name: str) -> int:
    """Return the number of a token."""
    number = tokenizer.token_to_id(_texts.text(token, name))
    if number is None:
        raise ValueError(f"{name}: expected a token of the tokenizer, got {token!r}")
    return int(number)


def _several(texts: Any, name: str) -> tuple[list[Any], bool]:
    """Return the vectors of texts, and whether they were those of a single one."""
    is_one = not isinstance(texts, (list, tuple)) and np.ndim(texts) == 2
    if isinstance(texts, (list, tuple)) and texts:
        is_one = np.ndim(texts[0]) == 1
    return [texts] if is_one else [*_checks.items(texts, name, "arrays")], is_one
