"""Pictures to labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnpy import _checks, _dtypes, _keywords, _parameters, _pickles, _progress, _repr
from attnpy._files import folder_at
from attnpy._softmax import softmax
from attnpy.checkpoints import read_config
from attnpy.models import _hf_config, _text_scores, _texts, image_processor
from attnpy.models.classify import FUNCTIONS
from attnpy.models.image_processor import ImageProcessor
from attnpy.models.vision import ImageEncoder

if TYPE_CHECKING:
    import os

    from numpy.typing import DTypeLike

    from attnpy._typing import Array
    from attnpy.models.classify import Label


@_keywords.answering
class ImageClassifier:
    """Tells what is on pictures of any size.

    `from_pretrained` reads one from a folder of Transformers.

    Parameters
    ----------
    model : ImageEncoder
        With `num_labels`.
    processor : ImageProcessor
        Makes what the model takes of pictures.
    label_names : sequence of str, optional
        Their names; by default "LABEL_0" and so on.
    function : {"softmax", "sigmoid", "none"}, optional
        What makes probabilities of scores. By default "softmax" for several labels, of
        which a picture has one, and "sigmoid" for a single one.

    Attributes
    ----------
    model, processor, label_names, function
        As given, or as they are by default.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or does not fit the others.

    Notes
    -----
    A picture's scores have the same bits whatever other pictures come with it, in
    whatever batches and on however many threads.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import ImageClassifier, ImageEncoder, ImageProcessor
    >>> rng = np.random.default_rng(0)
    >>> model = ImageEncoder(
    ...     2, 16, 4, 64, image_size=32, patch_size=8, num_labels=2, rng=rng
    ... )
    >>> classifier = ImageClassifier(
    ...     model, ImageProcessor((32, 32)), label_names=["cat", "dog"]
    ... )
    >>> picture = rng.integers(0, 256, (32, 32, 3), np.uint8)
    >>> classifier.scores([picture, picture]).shape
    (2, 2)
    >>> sorted(classifier.predict(picture))
    ['label', 'score']
    """

    model: ImageEncoder
    processor: ImageProcessor
    label_names: tuple[str, ...]
    function: str

    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what a pickle or a copy has, if pictures can be classified with it."""
        _pickles.set_state(self, state)
        with _pickles.judged(self):
            self._check_parts()
            _checks.one_of(self.function, "function", FUNCTIONS)

    def _shown(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "label_names": list(self.label_names),
            "function": self.function,
        }

    __repr__ = _repr.shows(_shown)

    def __init__(
        self,
        model: ImageEncoder,
        processor: ImageProcessor,
        *,
        label_names: Iterable[str] | None = None,
        function: Literal["softmax", "sigmoid", "none"] | None = None,
    ) -> None:
        self.model, self.processor = model, processor
        n_labels = self._check_parts()
        if label_names is None:
            label_names = [f"LABEL_{i}" for i in range(n_labels)]
        self.label_names = tuple(
            _texts.text(x, f"label_names[{i}]") for i, x in enumerate(label_names)
        )
        if len(self.label_names) != n_labels:
            raise ValueError(
                f"label_names: expected {n_labels}, as many as scores, got "
                f"{len(self.label_names)}"
            )
        usual = "softmax" if n_labels > 1 else "sigmoid"
        self.function = _checks.one_of(
            usual if function is None else function, "function", FUNCTIONS
        )

    def _check_parts(self) -> int:
        """Return the number of labels of a model and a processor that fit together."""
        if not isinstance(self.model, ImageEncoder):
            raise TypeError(
                f"model: expected an ImageEncoder, got {type(self.model).__name__}"
            )
        if self.model.classifier_bias is None:
            raise ValueError(
                "model: expected one with num_labels, or read with classifier=True, "
                "got one without"
            )
        image_processor.check_size(self.processor, self.model.image_size)
        return len(self.model.classifier_bias)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        function: Literal["softmax", "sigmoid", "none"] | None = None,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["int8", "int4"] | None = None,
        activations: Literal["float", "int8"] = "float",
        progress: bool | None = None,
    ) -> ImageClassifier:
        """Read a classifier from a folder.

        Parameters
        ----------
        folder : str or path
            With a ``ForImageClassification`` of ViT or DeiT: ``config.json``,
            ``preprocessor_config.json`` and weights. ``id2label`` has the labels, and
            ``problem_type`` the function: "sigmoid" where a picture may have several
            labels, "none" for a regression.
        function : optional
            Overrides that of the folder.
        dtype, packed, weights, activations, progress
            As in `BertEncoder.from_pretrained`.

        Returns
        -------
        ImageClassifier

        Raises
        ------
        ImportError, FileNotFoundError
            If the safetensors package is not installed, or a file is missing.
        ValueError
            If files ask for something unsupported, or do not fit together.
        """
        config = read_config(folder_at(folder))
        processor = ImageProcessor.from_pretrained(folder)
        model = ImageEncoder.from_pretrained(
            folder,
            classifier=True,
            dtype=dtype,
            packed=packed,
            weights=weights,
            activations=activations,
            progress=progress,
        )
        said = _hf_config.problem_function(config)
        return cls(
            model,
            processor,
            label_names=_hf_config.labels(config),
            function=said if function is None else function,
        )

    def scores(
        self,
        images: Any,
        *,
        batch_size: int = 8,
        progress: bool | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Return the scores of all labels.

        Parameters
        ----------
        images : array_like of uint8, shape (H, W, 3) or (n, H, W, 3), or iterable
            One picture, or any number of them, even from a generator; see
            `ImageProcessor.__call__`.
        batch_size : int, optional
            How many go through the model at a time. Changes no bit of the result.
        progress : bool, optional
            Show a progress bar on standard error, if that is a terminal and the work
            takes longer than a second. True needs the tqdm package; None, the default,
            shows no bar if it is not installed.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (n, num_labels), or (num_labels,) for one picture
            After `function`: float32, or float64 for a model of that.

        Raises
        ------
        ImportError
            If a picture has to be resized, and Pillow is not installed; if `progress`
            is True, and tqdm is not.
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape, or is out of its range.
        """
        batch_size = _checks.count(batch_size, "batch_size")
        dtype = _dtypes.arithmetic(self.model.patch_kernel.dtype)
        parts = [np.empty((0, len(self.label_names)), dtype)]
        is_one = image_processor.is_one(images)
        given = [images] if is_one else images
        n_images = _progress.total(given)
        with _progress.bar(progress, n_images, "image") as done:
            for batch in image_processor.batches(given, batch_size):
                states = self.model(self.processor(batch), num_threads=num_threads)
                wide = states.astype(dtype, copy=False)
                parts.append(self.model.classify(wide, num_threads=num_threads))
                done(len(batch))
        scores = np.concatenate(parts)
        if self.function == "softmax":
            scores = softmax(scores, num_threads)[0]
        elif self.function == "sigmoid":
            scores = _text_scores.sigmoid(scores)
        result: Array = scores[0] if is_one else scores
        return result

    def predict(
        self,
        images: Any,
        *,
        batch_size: int = 8,
        progress: bool | None = None,
        num_threads: int | None = None,
    ) -> Label | list[Label]:
        """Return the best label of each picture.

        Parameters
        ----------
        images, batch_size, progress, num_threads
            As in `scores`.

        Returns
        -------
        list of dict, or dict for one picture
            With the ``"label"`` and its ``"score"``, as a pipeline of Transformers
            returns the best.

        Raises
        ------
        ImportError, TypeError, ValueError
            As `scores`.
        """
        scores = self.scores(
            images, batch_size=batch_size, progress=progress, num_threads=num_threads
        )
        found: list[Label] = [
            {"label": self.label_names[int(row.argmax())], "score": float(row.max())}
            for row in np.atleast_2d(scores)
        ]
        return found if scores.ndim == 2 else found[0]
