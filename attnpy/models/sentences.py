"""Sentences to vectors: a tokenizer, an encoder, pooling, and comparisons."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from attnpy import (
    _checks,
    _dtypes,
    _keywords,
    _parameters,
    _pickles,
    _progress,
    _repr,
    _vjp,
    checkpoints,
)
from attnpy._quoting import listed, named, quoted
from attnpy.checkpoints.reading import judged_elsewhere
from attnpy.models import (
    _gguf,
    _hf_config,
    _pooling,
    _sentence_folder,
    _sentence_saving,
    _similarity,
    _texts,
)
from attnpy.models._similarity import SearchResult
from attnpy.models._texts import WINDOW
from attnpy.models.bert import BertEncoder
from attnpy.models.decoder import CausalDecoder

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeGuard

    from numpy.typing import ArrayLike, DTypeLike

    from attnpy._typing import Array
    from attnpy.checkpoints import GgufFile
    from attnpy.models._sentence_folder import Step

# How many vectors `search` looks at at a time.
BLOCK = 16384


@_keywords.answering
class SentenceEncoder:
    """Turns texts into vectors: the closer two vectors, the more similar the meanings.

    `from_pretrained` reads one from a sentence-transformers folder, `from_gguf` from a
    GGUF file.

    Parameters
    ----------
    model : BertEncoder or CausalDecoder
        Computes the tokens' vectors.
    tokenizer : tokenizers.Tokenizer
        Turns texts into tokens. Its truncation is set to `max_length`, and its padding
        turned off.
    pooling : str or sequence of str, optional
        How the vectors of a text's tokens become one: "mean", "cls" (the first one),
        "max", "mean_sqrt_len_tokens", "weightedmean" or "lasttoken"; several are put
        side by side.
    include_prompt : bool, optional
        Include the tokens of a prompt in `pooling`.
    steps : sequence of callable, optional
        The steps after pooling: `_pooling.Dense` and `_pooling.Normalize` of folders.
    max_length : int, optional
        The longest text, in tokens; longer ones are truncated. By default the number of
        the model's positions.
    truncation_side : {"right", "left"}, optional
        At which end longer texts are cut.
    prompts : mapping of str to str, optional
        Texts to put before others, by name.
    default_prompt_name : str, optional
        The prompt that is put before texts by default.
    similarity_fn_name : {"cosine", "dot", "euclidean", "manhattan"}, optional
        What `similarity` and `search` compute; for the last two, minus the distance.
    truncate_dim : int, optional
        Return only this many first numbers of each vector; at most its size.
    tasks : mapping of str to model, optional
        Models of the same sizes for the `task` of `encode`. `model` is one of them.

    Attributes
    ----------
    model, tokenizer, pooling, include_prompt, steps, max_length, prompts,
    default_prompt_name, similarity_fn_name, truncate_dim, tasks
        As given.
    embed_dim : int
        `E`, the size of the resulting vectors.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range.

    Notes
    -----
    From Reimers and Gurevych, "Sentence-BERT: Sentence Embeddings using Siamese
    BERT-Networks" (2019). A text's vector has the same bits whatever texts are encoded
    with it, in any batches and on any number of threads: nothing is computed for
    padding.

    Examples
    --------
    >>> import numpy as np
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from attnpy.models import BertEncoder, SentenceEncoder
    >>> words = ["[UNK]", "cats", "dogs", "sleep", "bark"]
    >>> vocab = {word: i for i, word in enumerate(words)}
    >>> tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> rng = np.random.default_rng(0)
    >>> model = BertEncoder(2, 16, 4, 64, vocab_size=5, rng=rng)
    >>> encoder = SentenceEncoder(model, tokenizer)
    >>> vectors = encoder.encode(["cats sleep", "dogs bark", "dogs"])
    >>> vectors.shape
    (3, 16)
    >>> bool((encoder.encode("dogs bark") == vectors[1]).all())
    True
    >>> int(encoder.search("dogs bark", vectors, top_k=2).indices[0])
    1
    """

    model: BertEncoder | CausalDecoder
    tokenizer: Any
    pooling: tuple[str, ...]
    include_prompt: bool
    steps: tuple[Step, ...]
    max_length: int
    prompts: dict[str, str]
    default_prompt_name: str | None
    similarity_fn_name: str
    truncate_dim: int | None
    tasks: dict[str, BertEncoder | CausalDecoder]
    embed_dim: int

    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle or a copy, if texts can be encoded with it."""
        _pickles.set_state(self, state)
        with _pickles.judged(self):
            self._check_parts()
            _checked_modes(self.pooling)
            if self.embed_dim != (size := self._shortened(self.truncate_dim)):
                raise ValueError(f"embed_dim: expected {size}, got {self.embed_dim}")

    def _shown(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "embed_dim": self.embed_dim,
            "max_length": self.max_length,
            "pooling": self.pooling if self.pooling != ("mean",) else None,
            "include_prompt": self.include_prompt,
            "steps": list(self.steps) or None,
            "prompts": list(self.prompts) or None,
            "default_prompt_name": self.default_prompt_name,
            "similarity_fn_name": self.similarity_fn_name,
            "truncate_dim": self.truncate_dim,
            "tasks": list(self.tasks) or None,
        }

    __repr__ = _repr.shows(_shown)

    def __init__(
        self,
        model: BertEncoder | CausalDecoder,
        tokenizer: Any,
        *,
        pooling: str | Sequence[str] = "mean",
        include_prompt: bool = True,
        steps: Sequence[Step] = (),
        max_length: int | None = None,
        truncation_side: Literal["right", "left"] = "right",
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: str = "cosine",
        truncate_dim: int | None = None,
        tasks: Mapping[str, BertEncoder | CausalDecoder] | None = None,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.tasks = dict(_checks.mapping({} if tasks is None else tasks, "tasks"))
        self._check_parts()
        self.pooling = _checked_modes(pooling)
        self.include_prompt = _checks.flag(include_prompt, "include_prompt")
        self.steps = _pooling.checked_steps(steps)
        n_special = tokenizer.num_special_tokens_to_add(is_pair=False)
        self.max_length = model.max_tokens if max_length is None else max_length
        _sentence_folder.check_length(
            self.max_length, "max_length", model.max_tokens, n_special
        )
        side = _checks.one_of(truncation_side, "truncation_side", ("right", "left"))
        tokenizer.enable_truncation(self.max_length, direction=side)
        tokenizer.no_padding()
        self.prompts = dict(
            _checks.mapping({} if prompts is None else prompts, "prompts")
        )
        self.default_prompt_name = default_prompt_name
        with _checks.renamed(prompt_name="default_prompt_name"):
            self._prompt(None, None)
        self.similarity_fn_name = _checks.one_of(
            similarity_fn_name, "similarity_fn_name", tuple(_similarity.FUNCTIONS)
        )
        self.truncate_dim = truncate_dim
        self.embed_dim = self._shortened(truncate_dim)

    def _check_parts(self) -> None:
        """Require a model and a tokenizer."""
        if not isinstance(self.model, BertEncoder | CausalDecoder):
            raise TypeError(
                "model: expected a BertEncoder or CausalDecoder, got "
                f"{type(self.model).__name__}"
            )
        _texts.check_tokenizer(self.tokenizer)
        models = [*self.tasks.values()]
        if not models:
            return
        if not any(model is self.model for model in models) or not all(
            isinstance(model, type(self.model))
            and model.embed_dim == self.model.embed_dim
            and model.token_embedding.dtype == self.model.token_embedding.dtype
            for model in models
        ):
            raise ValueError(
                "tasks: expected models of the sizes and the dtype of model, which is "
                f"one of them, got those of {listed([*self.tasks])}"
            )

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        pooling: str | Sequence[str] | None = None,
        max_length: int | None = None,
        truncate_dim: int | None = None,
        tasks: Sequence[str] | None = None,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["int8", "int4"] | None = None,
        activations: Literal["float", "int8"] = "float",
        progress: bool | None = None,
    ) -> SentenceEncoder:
        """Read an encoder from a folder, as sentence-transformers writes it.

        Parameters
        ----------
        folder : str or path
            With ``modules.json`` and its modules: a Transformer of the families of
            `BertEncoder` or `CausalDecoder`, with ``tokenizer.json`` and weights; a
            Pooling; and any of Dense and Normalize. Their settings are honoured, or
            refused by name.
        pooling : str or sequence of str, optional
            For a folder without ``modules.json``, which does not specify it.
        max_length, truncate_dim : int, optional
            Override those of the folder.
        tasks : sequence of str, optional
            Read the model once for each of these tasks, with its adapter, for a folder
            that has adapters (jina-embeddings-v3). By default the model is read once,
            without an adapter.
        dtype, packed, weights, activations, progress
            As in `BertEncoder.from_pretrained`.

        Returns
        -------
        SentenceEncoder

        Raises
        ------
        ImportError, FileNotFoundError
            If the tokenizers or safetensors package is not installed, or a file is
            missing.
        TypeError, ValueError
            If files ask for something unsupported, or do not fit together.
        """
        recipe = _sentence_folder.read(folder)
        tokenizer, side = _sentence_folder.tokenizer(
            recipe.model_folder, recipe.lower_case
        )
        if pooling is not None and recipe.pooling is not None:
            raise ValueError(
                f"pooling: expected None, as modules.json specifies it, got {pooling!r}"
            )
        modes = pooling if recipe.pooling is None else recipe.pooling
        if modes is None:
            raise ValueError(
                f"pooling: expected one, as {folder} has no modules.json that "
                "specifies it, got None"
            )
        models = {
            task: _model(
                recipe.model_folder,
                task,
                dtype=dtype,
                packed=packed,
                weights=weights,
                activations=activations,
                ignore_head=True,  # the vectors of tokens are all that is pooled
                progress=progress,
            )
            for task in _checked_tasks(tasks)
        }
        model = next(iter(models.values()))
        inner_dim = model.token_embedding.shape[1]
        if isinstance(model, BertEncoder):
            inner_dim = model.embed_dim
        _sentence_folder.check_size(recipe, model.embed_dim, inner_dim)
        return cls(
            model,
            tokenizer,
            pooling=modes,
            include_prompt=recipe.include_prompt,
            steps=recipe.steps,
            max_length=_sentence_folder.longest(
                recipe.max_length, recipe.is_explicit, max_length, model.max_tokens
            ),
            truncation_side=side,
            prompts=recipe.prompts,
            default_prompt_name=recipe.default_prompt_name,
            similarity_fn_name=recipe.similarity_fn_name,
            truncate_dim=recipe.truncate_dim if truncate_dim is None else truncate_dim,
            tasks={task: made for task, made in models.items() if task is not None},
        )

    @classmethod
    def from_gguf(
        cls,
        file: str | os.PathLike[str] | GgufFile,
        *,
        pooling: str | Sequence[str] | None = None,
        normalize: bool = True,
        max_length: int | None = None,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        truncate_dim: int | None = None,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["file"] | None = None,
        activations: Literal["float", "int8"] = "float",
        progress: bool | None = None,
    ) -> SentenceEncoder:
        """Read an encoder from a GGUF file, as llama.cpp and Ollama have them.

        Parameters
        ----------
        file : str, path, or attnpy.checkpoints.GgufFile
            With its tokenizer: of the architectures of `BertEncoder.from_gguf`, or of
            `CausalDecoder.from_gguf`, such as Qwen3-Embedding, or "gemma-embedding".
        pooling : str or sequence of str, optional
            In place of the file's ``pooling_type``; needed if it has none.
        normalize : bool, optional
            Make vectors of length 1, as llama.cpp does.
        max_length : int, optional
            The longest text in tokens; by default the file's ``context_length``.
        prompts, default_prompt_name, truncate_dim : optional
            As in `SentenceEncoder`: files do not say them.
        dtype, packed, weights, activations, progress
            As in `CausalDecoder.from_gguf`.

        Returns
        -------
        SentenceEncoder

        Raises
        ------
        ImportError, FileNotFoundError
            If the gguf or tokenizers package is not installed; if there is no file.
        TypeError, ValueError
            As `CausalDecoder.from_gguf`; if nothing says how vectors are pooled.
        """
        opened = (
            file
            if isinstance(file, checkpoints.GgufFile)
            else checkpoints.load_gguf(file)
        )
        modes = _gguf.pooling(opened) if pooling is None else pooling
        if modes is None:
            raise ValueError(
                f"pooling: expected one, as {named(opened.path)} has no pooling_type "
                "of tokens, got None"
            )
        flag = _checks.flag(normalize, "normalize")
        make: Any = BertEncoder.from_config
        kind: Literal["encoder", "pooled decoder"] = "encoder"
        if not _gguf.is_encoder(opened):
            make = functools.partial(CausalDecoder.from_config, logits=False)
            kind = "pooled decoder"
        model = _gguf.read(
            *(make, opened, dtype, packed, progress, weights, activations), kind=kind
        )
        return cls(
            model,
            opened.tokenizer(),
            pooling=modes,
            steps=(*_gguf.dense(opened), *[_pooling.Normalize()] * flag),
            max_length=max_length,
            prompts=prompts,
            default_prompt_name=default_prompt_name,
            truncate_dim=truncate_dim,
        )

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that sentence-transformers reads, and `from_pretrained`.

        Parameters
        ----------
        folder : str or path
            Created if it does not exist. Files of these names are replaced together:
            those of the model's own `save_pretrained`, ``tokenizer.json``,
            ``tokenizer_config.json``, ``modules.json``, ``sentence_bert_config.json``,
            ``config_sentence_transformers.json``, and those of the modules after the
            model, in folders such as ``1_Pooling``.

        Raises
        ------
        TypeError
            If `folder` is no path.
        ValueError
            If the model cannot be saved, as its own `save_pretrained` says; if one of
            `steps` is a function of your own; if there are several `tasks`.

        Notes
        -----
        Read again, the folder gives the same bits, except for a quantised model, which
        is saved with the numbers that its integers stand for.
        """
        _sentence_saving.save(self, folder)

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        batch_size: int = 32,
        prompt: str | None = None,
        prompt_name: str | None = None,
        task: str | None = None,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
        progress: bool | None = None,
        out: Array | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Return the vectors of texts.

        Parameters
        ----------
        texts : str or iterable of str
            One text, or any number of them, even from a generator: only some thousands
            are in memory at a time.
        batch_size : int, optional
            How many texts of similar lengths go through the model at a time.
        prompt : str, optional
            A text to put before each; "" for none, if the encoder has a default.
        prompt_name : str, optional
            The name of one of `prompts`, instead of `prompt`. By default
            `default_prompt_name`.
        task : str, optional
            One of `tasks`, whose model computes the vectors; needed if there are
            several. It puts no prompt before texts.
        normalize : bool, optional
            True: vectors of length 1. False: skip the Normalize at the end of `steps`,
            if any. By default as in `steps`.
        truncate_dim : int, optional
            Return only this many first numbers of each vector; at most the size after
            `steps`. Only ``normalize=True`` normalizes them after that. By default the
            encoder's `truncate_dim`.
        progress : bool, optional
            Show a progress bar on standard error, if that is a terminal and the work
            takes longer than a second. True needs the tqdm package; None, the default,
            shows no bar if it is not installed.
        out : ndarray, shape (n, E), optional
            Array for the vectors, such as a `numpy.memmap`. They are written some
            thousands at a time, in the order given; after Ctrl-C each row is either
            complete or untouched.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result. With 1 the tokenizer also uses one thread; otherwise its package
            decides (``RAYON_NUM_THREADS``).

        Returns
        -------
        ndarray, shape (n, E), or (E,) for one text
            In the order given, with `E` of `truncate_dim`: float32, or float64 for a
            float64 model. `out`, if it is given. If a text has no tokens, not even
            special ones, its vector is the result of `steps` for 0.

        Raises
        ------
        ImportError
            If `progress` is True, and tqdm is not installed.
        TypeError, ValueError
            If an argument has the wrong kind, shape or dtype, or is out of its range.
        """
        batch_size = _checks.count(batch_size, "batch_size")
        dim = self.truncate_dim if truncate_dim is None else truncate_dim
        how = _How(
            self._model_of(task),
            self._prompt(prompt, prompt_name),
            None if normalize is None else _checks.flag(normalize, "normalize"),
            self._shortened(dim),
            batch_size,
            num_threads,
        )
        if isinstance(texts, str):
            return self._encode_one(_texts.text(texts, "texts"), how, out)
        n_texts = _progress.total(texts)
        sink = _Sink(out, n_texts, how.dim, self._dtype)
        size = WINDOW * batch_size
        with _progress.bar(progress, n_texts, "text") as done:
            for window in _texts.windows(texts, size, "texts", _texts.text):
                self._encode_window(window, how, sink.rows(len(window)), done)
        return sink.whole()

    def vjp(
        self,
        texts: Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        task: str | None = None,
        checkpoint: bool = False,
        dropout: float = 0.0,
        dropout_seed: int | None = None,
        num_threads: int | None = None,
    ) -> tuple[Array, Callable[[ArrayLike], dict[str, Array]]]:
        """Return the vectors of texts, and the pullback of gradients: for training.

        Parameters
        ----------
        texts : iterable of str
            A batch.
        prompt, prompt_name, task
            As in `encode`.
        checkpoint, dropout, dropout_seed
            As in `BertEncoder.vjp`.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        vectors : ndarray, shape (n, E)
            With the same bits as those of `encode`, where nothing is dropped.
        pullback : callable
            Takes the gradient with respect to the vectors, and returns those of the
            model, a dict with the names of ``model.parameters()``. Matrices of Dense
            steps are not trained.

        Raises
        ------
        TypeError, ValueError
            As `encode`; if the model is packed (``packed=False`` in `from_pretrained`
            leaves it as it is), or not float32 or float64.
        """
        front = self._prompt(prompt, prompt_name)
        given = [
            front + text
            for window in _texts.windows(texts, BLOCK, "texts", _texts.text)
            for text in window
        ]
        codes = _texts.encoded(self.tokenizer, given, num_threads)
        tokens = [code.ids for code in codes]
        lengths = [len(ids) for ids in tokens]
        options: dict[str, Any] = {"dropout": dropout, "dropout_seed": dropout_seed}
        if isinstance(self.model, CausalDecoder):
            if dropout != 0 or dropout_seed is not None:
                raise ValueError(
                    f"dropout: expected 0 with a CausalDecoder, got {dropout}"
                )
            options = {}
        states, of_states = self._model_of(task).vjp(
            _texts.padded(tokens) if tokens else np.zeros((0, 0), np.int64),
            lengths=lengths,
            checkpoint=checkpoint,
            num_threads=num_threads,
            **options,
        )
        vectors, back = _pooling.batch_vjp(
            states, lengths, self.pooling, self._prompt_tokens(front)
        )
        backs = [back]
        for step in self.steps:
            vectors, back = _step_vjp(step, vectors, num_threads)
            backs.append(back)
        shape, output = vectors.shape, vectors[:, : self.embed_dim].copy()
        checked = _vjp.of_output(output)

        def pullback(grad_output: ArrayLike) -> dict[str, Array]:
            grad = np.zeros(shape, output.dtype)
            grad[:, : output.shape[1]] = checked(grad_output)
            for back in reversed(backs):
                grad = back(grad)
            return of_states(grad)

        return output, pullback

    def similarity(
        self, a: ArrayLike, b: ArrayLike, *, num_threads: int | None = None
    ) -> Array:
        """Return the similarity of vectors, by `similarity_fn_name`.

        Parameters
        ----------
        a : array_like, shape (n, E) or (E,)
        b : array_like, shape (m, E) or (E,)
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (n, m)
            The similarity of each of `a` with each of `b`, without the axis of an
            argument that is a single vector. Each number has the same bits as alone.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong kind or shape.
        """
        one = _similarity.vectors(a, "a")
        other = _similarity.vectors(b, "b", one.shape[-1])
        scores = _similarity.FUNCTIONS[self.similarity_fn_name](
            np.atleast_2d(one), np.atleast_2d(other), num_threads
        )
        return scores.reshape(one.shape[:-1] + other.shape[:-1])

    def search(
        self,
        query: str | Iterable[str] | Array,
        corpus: Array | Iterable[str],
        top_k: int = 10,
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        task: str | None = None,
        progress: bool | None = None,
        num_threads: int | None = None,
    ) -> SearchResult:
        """Find the most similar entries of a corpus, reading it in blocks.

        Parameters
        ----------
        query : str, iterable of str, or ndarray of shape (E,) or (n, E)
            A text, several texts, or their vectors.
        corpus : ndarray of shape (m, E), or iterable of str
            Vectors, which may be a `numpy.memmap` larger than memory; or texts, whose
            vectors are computed and not kept.
        top_k : int, optional
            The largest number of results.
        prompt, prompt_name, task
            As in `encode`, for text queries. With several `tasks` a corpus is vectors,
            from `encode` with the task of documents.
        progress : bool, optional
            As in `encode`, for the progress through the corpus.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        SearchResult
            `indices` and `scores`, shape (top_k,), or (n, top_k) for several queries:
            the best first; of equal ones, the first in the corpus. ``print`` shows them
            in lines, with the texts that were found.

        Raises
        ------
        ImportError
            If `progress` is True, and tqdm is not installed.
        TypeError, ValueError
            If an argument has the wrong kind or shape, or is out of its range.
        """
        top_k = _checks.count(top_k, "top_k")
        if not _is_numbers(query):
            with _checks.renamed(texts="query"):
                query = self.encode(
                    query,
                    prompt=prompt,
                    prompt_name=prompt_name,
                    task=task,
                    progress=False,
                    num_threads=num_threads,
                )
        elif (prompt, prompt_name, task) != (None, None, None):
            name = "prompt" if task is None else "task"
            raise ValueError(f"{name}: expected none for a query of vectors, got one")
        queries = _similarity.vectors(query, "query")
        compare = _similarity.FUNCTIONS[self.similarity_fn_name]
        n_rows = _progress.total(corpus)

        def blocks() -> Iterator[tuple[Array, Sequence[str]]]:
            with _progress.bar(progress, n_rows, "text") as done:
                for block, texts in self._blocks(
                    corpus, queries.shape[-1], num_threads
                ):
                    yield compare(np.atleast_2d(queries), block, num_threads), texts
                    done(len(block))

        found = _similarity.best(blocks(), top_k, len(np.atleast_2d(queries)))
        if queries.ndim == 2:
            return found
        return SearchResult(found.indices[0], found.scores[0], found.texts)

    @property
    def _dtype(self) -> np.dtype[Any]:
        return _dtypes.arithmetic(self.model.token_embedding.dtype)

    def _shortened(self, truncate_dim: int | None) -> int:
        """Return the size of vectors after truncation."""
        dim = _pooling.size_after(
            self.steps, len(self.pooling) * self.model.embed_dim, self._dtype
        )
        if truncate_dim is None:
            return dim
        if _checks.count(truncate_dim, "truncate_dim") > dim:
            raise ValueError(
                f"truncate_dim: expected at most {dim}, as many numbers as vectors "
                f"have, got {truncate_dim}"
            )
        return truncate_dim

    def _model_of(self, task: str | None) -> BertEncoder | CausalDecoder:
        """Return the model of a task."""
        if task is None and len(self.tasks) < 2:
            return self.model
        if not isinstance(task, str) or task not in self.tasks:
            known = " or ".join(map(repr, self.tasks))
            wanted = known or "None, as from_pretrained(tasks=...) read no adapters"
            raise ValueError(f"task: expected {wanted}, got {quoted(task)}")
        return self.tasks[task]

    def _prompt(self, prompt: str | None, name: str | None) -> str:
        """Return what to put before texts."""
        return _texts.prompt(self.prompts, self.default_prompt_name, prompt, name)

    def _encode_one(self, text: str, how: _How, out: Array | None) -> Array:
        if isinstance(out, np.ndarray) and out.shape != (how.dim,):
            raise ValueError(
                f"out: expected ({how.dim},) for one text, got {out.shape}"
            )
        rows = out[np.newaxis] if isinstance(out, np.ndarray) else out
        sink = _Sink(rows, 1, how.dim, self._dtype)
        self._encode_window([text], how, sink.rows(1), lambda n: None)
        return sink.whole()[0] if out is None else out

    def _encode_window(
        self, texts: list[str], how: _How, out: Array, done: Callable[[int], object]
    ) -> None:
        """Write the vectors of texts, which are all in memory, (n, E)."""
        texts = [how.prompt + text for text in texts]
        codes = _texts.encoded(self.tokenizer, texts, how.num_threads)
        tokens = [code.ids for code in codes]
        first = self._prompt_tokens(how.prompt)
        for chosen, states in _texts.token_vectors(
            how.model, tokens, how.batch_size, how.num_threads
        ):
            pooled = [_pooling.pooled(text, self.pooling, first) for text in states]
            out[chosen] = self._finished(np.stack(pooled), how)
            done(len(chosen))

    def _prompt_tokens(self, prompt: str) -> int:
        """Return how many tokens at the beginning `pooling` ignores."""
        if self.include_prompt or not prompt:
            return 0
        with judged_elsewhere("tokenizer", "one that makes tokens of the prompt"):
            ids = self.tokenizer.encode(prompt).ids
        added = self.tokenizer.get_added_tokens_decoder()
        ends = bool(ids) and ids[-1] in added and added[ids[-1]].special
        return len(ids) - ends

    def _finished(self, vectors: Array, how: _How) -> Array:
        """Return the vectors after the steps, truncated and normalized as wanted."""
        steps = list(self.steps)
        while (
            how.normalize is False
            and steps
            and isinstance(steps[-1], _pooling.Normalize)
        ):
            steps.pop()
        for step in steps:
            vectors = step(vectors, how.num_threads)
        vectors = vectors[:, : how.dim]
        if how.normalize:
            vectors = _pooling.normalized(np.ascontiguousarray(vectors))
        return vectors

    def _blocks(
        self, corpus: Array | Iterable[str], dim: int, num_threads: int | None
    ) -> Iterator[tuple[Array, Sequence[str]]]:
        """Yield the vectors of a corpus, some thousands at a time, and its texts."""
        if not _is_numbers(corpus):
            if isinstance(corpus, str):
                raise TypeError("corpus: expected vectors or texts, got one string")
            if len(self.tasks) > 1:
                raise ValueError(
                    "corpus: expected vectors, from encode with a task, as the encoder "
                    f"has those of {listed([*self.tasks])}, got texts"
                )
            for window in _texts.windows(corpus, BLOCK, "corpus", _texts.text):
                vectors = self.encode(window, progress=False, num_threads=num_threads)
                yield vectors, window
            return
        if corpus.ndim != 2 or corpus.shape[1] != dim:
            raise ValueError(
                f"corpus: expected (m, {dim}) to match query, got {corpus.shape}"
            )
        for begin in range(0, len(corpus), BLOCK):
            block = corpus[begin : begin + BLOCK]
            yield _similarity.vectors(block, "corpus", dim), ()


def _model(
    folder: Path, task: str | None = None, **options: Any
) -> BertEncoder | CausalDecoder:
    """Read the model of a folder: that of its family."""
    config = checkpoints.read_config(folder)
    if not _hf_config.is_decoder(config):
        return BertEncoder.from_pretrained(folder, task=task, **options)
    if task is not None:
        raise ValueError(
            f"tasks: expected None, as the folder has no adapters, got {quoted(task)}"
        )
    return CausalDecoder.from_pretrained(folder, logits=False, **options)


def _checked_tasks(tasks: Sequence[str] | None) -> Sequence[str | None]:
    """Return which models to read: None is the one without an adapter."""
    if tasks is None:
        return [None]
    if not isinstance(tasks, Sequence):
        kind = type(tasks).__name__
        raise TypeError(f"tasks: expected a sequence of names, got a {kind}")
    names = [tasks] if isinstance(tasks, str) else [*tasks]
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"tasks: expected the names of some, got {quoted(tasks)}")
    return names


class _How(NamedTuple):
    """How texts are encoded."""

    model: BertEncoder | CausalDecoder
    prompt: str
    normalize: bool | None
    dim: int
    batch_size: int
    num_threads: int | None


class _Sink:
    """Where vectors go, window after window: an array, or parts to be joined."""

    def __init__(
        self, out: Array | None, n_texts: int | None, dim: int, dtype: np.dtype[Any]
    ) -> None:
        self.dim, self.dtype, self.is_given = dim, dtype, out is not None
        self.parts: list[Array] = []
        self.n_rows = 0
        if out is not None:
            _check_out(out, n_texts, dim, dtype)
        elif n_texts is not None:
            out = np.empty((n_texts, dim), dtype)
        self.out = out

    def rows(self, n: int) -> Array:
        """Return the array for the next n vectors."""
        begin, self.n_rows = self.n_rows, self.n_rows + n
        if self.out is None:
            self.parts.append(np.empty((n, self.dim), self.dtype))
            return self.parts[-1]
        if self.n_rows > len(self.out):
            raise self.fault(f"at least {self.n_rows}")
        return self.out[begin : self.n_rows]

    def whole(self) -> Array:
        """Return the array with all rows filled."""
        if self.out is None:
            empty = np.empty((0, self.dim), self.dtype)
            return np.concatenate([empty, *self.parts])
        if self.n_rows < len(self.out):
            raise self.fault(str(self.n_rows))
        return self.out

    def fault(self, count: str) -> ValueError:
        """Return the error for a number of texts other than promised."""
        assert self.out is not None
        what = (
            "out: expected as many rows as texts"
            if self.is_given
            else ("texts: expected as many as len() says")
        )
        return ValueError(f"{what}, {len(self.out)}, got {count}")


def _check_out(out: Array, n_texts: int | None, dim: int, dtype: np.dtype[Any]) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out: expected an ndarray, got {type(out).__name__}")
    if out.dtype != dtype:
        raise TypeError(f"out: expected {dtype}, got {out.dtype}")
    if out.ndim != 2 or out.shape[1] != dim or n_texts not in (None, len(out)):
        n = "n" if n_texts is None else n_texts
        raise ValueError(f"out: expected ({n}, {dim}), got {out.shape}")
    if not out.flags.writeable:
        raise ValueError("out: expected an array that can be written to")


def _step_vjp(
    step: Step, vectors: Array, num_threads: int | None
) -> tuple[Array, Callable[[Array], Array]]:
    """Return the result of a step, and what takes its gradient to the vectors'."""
    if not isinstance(step, _pooling.Dense | _pooling.Normalize):
        raise TypeError(f"steps: expected those of folders for a vjp, got {step!r}")
    return step.vjp(vectors, num_threads)


def _is_numbers(values: object) -> TypeGuard[Array]:
    """Tell vectors from texts, which may also come in an array."""
    return isinstance(values, np.ndarray) and values.dtype.kind not in "OTU"


def _checked_modes(pooling: str | Sequence[str]) -> tuple[str, ...]:
    given = [pooling] if isinstance(pooling, str) else pooling
    modes = tuple(_checks.items(given, "pooling", "modes"))
    if not modes:
        raise ValueError("pooling: expected at least one mode, got none")
    for mode in modes:
        _checks.one_of(mode, "pooling", tuple(_pooling.MODES))
    return modes
