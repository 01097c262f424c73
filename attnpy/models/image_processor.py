"""Pictures to arrays as models take them: resized, cropped, rescaled, normalised."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _keywords, _parameters, _pickles, _repr
from attnpy._families.fields import is_number
from attnpy._files import folder_at
from attnpy.checkpoints.reading import is_there, read_json
from attnpy.models._sentence_folder import Fields

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# The names of Pillow's filters, and the numbers that files give.
FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4}
FILTERS |= {"hamming": 5}

HALF = (0.5, 0.5, 0.5)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

# What the classes do where a file says nothing.
DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": {"size": {"height": 224, "width": 224}, "resample": 2},
    "DeiT": {
        "size": {"height": 256, "width": 256},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
    },
    "CLIP": {
        "size": {"shortest_edge": 224},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
        "default_to_square": False,
    },
    "Siglip": {
        "size": {"height": 224, "width": 224},
        "resample": 3,
        "default_to_square": False,
    },
}
ENDINGS = (
    "ImageProcessorFast",
    "ImageProcessorPil",
    "ImageProcessor",
    "FeatureExtractor",
)

# Fields that say who wrote the file, or how theirs is called.
HARMLESS = (
    "_valid_processor_keys",
    "auto_map",
    "data_format",
    "device",
    "disable_grouping",
    "input_data_format",
    "processor_class",
    "return_tensors",
)


@_keywords.answering
class ImageProcessor:
    r"""Turns pictures into the arrays that a model takes, as Transformers does.

    `from_pretrained` reads one from a folder.

    Parameters
    ----------
    size : int or (int, int), optional
        Height and width of the results; or, an int, the length of the shorter side, for
        a picture that keeps its proportions. None: pictures are not resized.
    crop_size : (int, int), optional
        Height and width of what is cut out of the middle after that; black borders are
        added where a picture is smaller. By default nothing is cut.
    resample : {"bilinear", "bicubic", "lanczos", "box", "hamming", "nearest"}, optional
        Pillow's filter.
    rescale_factor : float, optional
        Numbers are multiplied by it; None: they are not.
    image_mean, image_std : float or sequence of float, shape (3,), optional
        Then `image_mean` is subtracted from each channel, and `image_std` divides it.
        None for both: neither is done.

    Attributes
    ----------
    size, crop_size, resample, rescale_factor, image_mean, image_std
        As given; tuples for sequences.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range.

    Notes
    -----
    The arithmetic, and its order, is that of the processors of Transformers that use
    Pillow, bit for bit: 8-bit numbers are resized by Pillow and rounded to 8 bits,
    rescaled in float64 and rounded to float32, and normalised in float32. Their "Fast"
    ones resize with torchvision, whose numbers differ a little; files made for these
    are read, and give the numbers of Pillow.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import ImageProcessor
    >>> processor = ImageProcessor(size=None, crop_size=(4, 4))
    >>> picture = np.full((4, 6, 3), 255, np.uint8)
    >>> processor(picture).shape
    (4, 4, 3)
    >>> float(processor([picture, picture]).max())
    1.0
    """

    size: int | tuple[int, int] | None
    crop_size: tuple[int, int] | None
    resample: str
    rescale_factor: float | None
    image_mean: tuple[float, ...] | None
    image_std: tuple[float, ...] | None

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def __init__(
        self,
        size: int | Iterable[int] | None = (224, 224),
        *,
        crop_size: Iterable[int] | None = None,
        resample: str = "bilinear",
        rescale_factor: float | None = 1 / 255,
        image_mean: float | Iterable[float] | None = 0.5,
        image_std: float | Iterable[float] | None = 0.5,
    ) -> None:
        if isinstance(size, Iterable):
            self.size = _two(size, "size")
        else:
            self.size = None if size is None else _checks.count(size, "size")
        self.crop_size = None if crop_size is None else _two(crop_size, "crop_size")
        self.resample = _checks.one_of(resample, "resample", tuple(FILTERS))
        self.rescale_factor = None
        if rescale_factor is not None:
            self.rescale_factor = _checks.above(
                rescale_factor, "rescale_factor", -math.inf
            )
        if (image_mean is None) != (image_std is None):
            raise ValueError("image_std: expected None with image_mean = None")
        self.image_mean = _channels(image_mean, "image_mean")
        self.image_std = _channels(image_std, "image_std")
        if self.image_std is not None and not all(x > 0 for x in self.image_std):
            raise ValueError(
                f"image_std: expected numbers above 0, got {list(self.image_std)}"
            )

    def _shown(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).__annotations__}

    __repr__ = _repr.shows(_shown)

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> ImageProcessor:
        """Read a processor from a folder.

        Parameters
        ----------
        folder : str or path
            With ``preprocessor_config.json``, of the processors of ViT, DeiT, CLIP or
            SigLIP. Each field is honoured, known not to matter, or refused by name.

        Returns
        -------
        ImageProcessor

        Raises
        ------
        FileNotFoundError
            If the file is missing.
        ValueError
            If a field has another kind of value, or asks for something that is not
            here.
        """
        name = "preprocessor_config.json"
        return cls(**_read(folder_at(folder, (name,)) / name))

    def __call__(self, images: Any) -> NDArray[np.float32]:
        """Return pictures as a model takes them.

        Parameters
        ----------
        images : array_like of uint8, shape (H, W, 3) or (n, H, W, 3), or list of them
            One picture or several, which may have different sizes in a list: numbers
            from 0 to 255, red, green and blue. Pictures of Pillow are arrays, too, if
            their mode is "RGB": ``image.convert("RGB")``.

        Returns
        -------
        ndarray of float32, shape (h, w, 3) or (n, h, w, 3)
            The axis of channels is the last, as in the pictures.

        Raises
        ------
        ImportError
            If a picture has to be resized, and Pillow is not installed.
        TypeError
            If the numbers are not of dtype uint8.
        ValueError
            If a shape is another, or results have different sizes.
        """
        if is_one(images):
            return self._process(images, "images")
        results = [
            self._process(image, f"images[{i}]") for i, image in enumerate(images)
        ]
        shapes = {result.shape for result in results}
        if len(shapes) > 1:
            raise ValueError(
                "images: expected results of one size, got "
                f"{', '.join(map(str, sorted(shapes)))}: crop_size makes them alike"
            )
        if not results:
            return np.zeros((0, *self._size_of_results(), 3), np.float32)
        return np.stack(results)

    def _size_of_results(self) -> tuple[int, int]:
        """Return height and width of all results, 0 where they depend on pictures."""
        if self.crop_size is not None:
            return self.crop_size
        return self.size if isinstance(self.size, tuple) else (0, 0)

    def _process(self, image: ArrayLike, name: str) -> NDArray[np.float32]:
        picture = _checked(image, name)
        picture = self._resized(picture)
        if self.crop_size is not None:
            picture = _cropped(picture, self.crop_size)
        numbers: NDArray[np.float32]
        if self.rescale_factor is None:
            numbers = picture.astype(np.float32)
        else:
            numbers = (picture * np.float64(self.rescale_factor)).astype(np.float32)
        if self.image_mean is not None:
            numbers -= np.array(self.image_mean, np.float32)
            numbers /= np.array(self.image_std, np.float32)
        return numbers

    def _resized(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if self.size is None:
            return picture
        height, width = picture.shape[:2]
        if isinstance(self.size, tuple):
            wanted = self.size
        else:
            longer = int(self.size * max(height, width) / min(height, width))
            wanted = (longer, self.size) if width <= height else (self.size, longer)
        if wanted == (height, width):
            return picture
        try:
            from PIL import Image
        except ImportError as error:
            raise ImportError(
                f"attnpy.models: resizing a picture of {height} x {width} to "
                f"{wanted[0]} x {wanted[1]} needs Pillow: pip install pillow"
            ) from error
        made = Image.fromarray(np.ascontiguousarray(picture))
        resized = made.resize(wanted[::-1], resample=FILTERS[self.resample])
        return np.asarray(resized)


def is_one(images: Any) -> bool:
    """Tell a single picture from several, which have one axis more."""
    if isinstance(images, np.ndarray):
        return images.ndim in (0, 3)
    if hasattr(images, "__array_interface__") or isinstance(images, str | bytes):
        return True
    if not isinstance(images, Iterable):
        raise TypeError(
            f"images: expected pictures as arrays, got {type(images).__name__}"
        )
    return False


def batches(images: Any, batch_size: int) -> Iterator[list[Any]]:
    """Go through pictures, this many at a time; a generator's are not kept."""
    batch: list[Any] = []
    for image in images:
        batch.append(image)
        if len(batch) == batch_size:
            yield batch
            batch = []
    if batch:
        yield batch


def check_size(processor: object, image_size: tuple[int, int]) -> None:
    """Require a processor, whose pictures have a model's size if they have one."""
    if not isinstance(processor, ImageProcessor):
        raise TypeError(
            f"processor: expected an ImageProcessor, got {type(processor).__name__}"
        )
    size = processor.crop_size
    if size is None and isinstance(processor.size, tuple):
        size = processor.size
    if size not in (None, image_size):
        raise ValueError(
            f"processor: expected pictures of {image_size}, as the model takes them, "
            f"got {size}"
        )


def _checked(image: ArrayLike, name: str) -> NDArray[np.uint8]:
    """Return a picture as an array (H, W, 3)."""
    picture = _checks.array(image, name)
    if picture.dtype != np.uint8:
        raise TypeError(
            f"{name}: expected a picture of dtype uint8, numbers from 0 to 255, got "
            f"{picture.dtype}"
        )
    if picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        raise ValueError(
            f"{name}: expected (H, W, 3), red, green and blue, got {picture.shape}"
        )
    return picture


def _cropped(picture: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the middle of a picture, with black borders where it is smaller."""
    result = np.zeros((*size, 3), np.uint8)
    here, there = [], []
    for n, wanted in zip(picture.shape, size, strict=False):
        # Of an odd number more is cut on the far side, and added on the near side.
        first = (n - wanted) // 2 if n >= wanted else -math.ceil((wanted - n) / 2)
        here.append(slice(max(first, 0), min(first + wanted, n)))
        there.append(slice(max(-first, 0), max(-first, 0) + min(wanted, n)))
    result[tuple(there)] = picture[tuple(here)]
    return result


def _two(values: Iterable[int], name: str) -> tuple[int, int]:
    numbers = _checks.items(values, name, "int")
    if len(numbers) != 2:
        raise ValueError(f"{name}: expected height and width, got {len(numbers)}")
    height, width = (_checks.count(n, name) for n in numbers)
    return height, width


def _channels(
    values: float | Iterable[float] | None, name: str
) -> tuple[float, ...] | None:
    """Return a number for each channel."""
    if values is None:
        return None
    if isinstance(values, Iterable):
        numbers = _checks.items(values, name, "3 numbers")
    else:
        numbers = [values] * 3
    if len(numbers) != 3:
        raise ValueError(f"{name}: expected 3 numbers, got {len(numbers)}")
    return tuple(_checks.above(x, name, -math.inf) for x in numbers)


# ---- Files ---------------------------------------------------------------------------


def _read(path: Path) -> dict[str, Any]:
    """Return the arguments of a processor that a file describes."""
    fields = Fields(path)
    fields.rest = _defaults(fields) | fields.rest
    for name in HARMLESS:
        fields.rest.pop(name, None)
    for name in ("do_pad", "do_flip_channel_order", "do_reduce_labels"):
        fields.require(name, False)
    fields.require("do_convert_rgb", True, False)  # pictures here are red, green, blue
    is_square = fields.take("default_to_square", bool, "true or false", True)
    flags = {
        name: fields.take(name, bool, "true or false", name != "do_center_crop")
        for name in ("do_resize", "do_center_crop", "do_rescale", "do_normalize")
    }
    size = _size(fields, "size", is_square)
    crop = _size(fields, "crop_size", True)
    resample = fields.take("resample", int, "one of Pillow's filters", 2)
    names = {number: name for name, number in FILTERS.items()}
    if resample not in names:
        raise fields.fault("resample to be one of Pillow's filters, 0 to 5", resample)
    factor = fields.rest.pop("rescale_factor", 1 / 255)
    if not is_number(factor):
        raise fields.fault("rescale_factor to be a finite number above 0", factor)
    mean, std = (_mean(fields, name, HALF) for name in ("image_mean", "image_std"))
    fields.end()
    if flags["do_center_crop"] and crop is None:
        raise fields.fault("crop_size where do_center_crop is true", None)
    if isinstance(crop, int):
        raise fields.fault("crop_size with height and width", {"shortest_edge": crop})
    return {
        "size": size if flags["do_resize"] else None,
        "crop_size": crop if flags["do_center_crop"] else None,
        "resample": names[resample],
        "rescale_factor": factor if flags["do_rescale"] else None,
        "image_mean": mean if flags["do_normalize"] else None,
        "image_std": std if flags["do_normalize"] else None,
    }


def _defaults(fields: Fields) -> dict[str, Any]:
    """Return what the class that a file is for does by itself."""
    newer = fields.take("image_processor_type", str, "a name")
    older = fields.take("feature_extractor_type", str, "a name")
    name = newer or older or _of_model(fields.path.with_name("config.json"))
    if name is None:
        raise fields.fault("image_processor_type, which says what is usual", None)
    family = name
    for ending in ENDINGS:
        family = family.removesuffix(ending)
    if family not in DEFAULTS or family == name:
        known = ", ".join(f"{family}ImageProcessor" for family in DEFAULTS)
        raise fields.fault(f"image_processor_type to be of {known}", name)
    return DEFAULTS[family]


def _of_model(path: Path) -> str | None:
    """Return the processor of the model beside it, for a file that names none."""
    kind = str(read_json(path).get("model_type")) if is_there(path) else ""
    names = {family.lower(): f"{family}ImageProcessor" for family in DEFAULTS}
    return names.get(kind.partition("_")[0])


def _size(fields: Fields, name: str, is_square: bool) -> int | tuple[int, int] | None:
    """Return height and width, or the length of the shorter side."""
    value = fields.rest.pop(name, None)
    words = (
        f"{name} to be an integer, two, or a mapping with height and width, or with "
        "shortest_edge"
    )
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = (
            {"height": value, "width": value} if is_square else {"shortest_edge": value}
        )
    elif isinstance(value, list) and len(value) == 2:
        value = dict(zip(("height", "width"), value, strict=True))
    if not isinstance(value, Mapping):
        raise fields.fault(words, value)
    given = {key: n for key, n in value.items() if n is not None}
    keys = list(given)
    if not all(type(n) is int and 0 < n < 2**15 for n in given.values()) or set(
        keys
    ) not in ({"height", "width"}, {"shortest_edge"}):
        raise fields.fault(words, value)
    if keys == ["shortest_edge"]:
        return int(given["shortest_edge"])
    return int(given["height"]), int(given["width"])


def _mean(fields: Fields, name: str, usual: tuple[float, ...]) -> tuple[float, ...]:
    """Return a number for each channel."""
    value = fields.rest.pop(name, usual)
    numbers = [value] * 3 if isinstance(value, int | float) else value
    right = isinstance(numbers, list | tuple) and len(numbers) == 3
    if not right or not all(
        isinstance(x, int | float)
        and not isinstance(x, bool)
        and math.isfinite(x)
        and (x > 0 or name == "image_mean")
        for x in numbers
    ):
        raise fields.fault(f"{name} to be a number, or 3", value)
    return tuple(float(x) for x in numbers)
