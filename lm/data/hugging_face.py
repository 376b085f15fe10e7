"""Documents of a Hugging Face data set: one by one from any row on, downloaded or streamed.

The library keeps what it downloads (HF_HOME says where); a streamed data set is kept as the token
files that are made of it. A path may be a name on the Hub, a folder of data files, or a folder
that `save_to_disk` wrote.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lm.data.inputs import Piece, Place
from lm.errors import BadInput, installed_by

ROWS = 1024  # read at a time


class HuggingFace:
    """Rows of one split of a data set; the documents are in text_field."""

    unit = "row"

    def __init__(
        self,
        path: str,
        subset: str | None,
        split: str,
        text_field: str,
        streaming: bool = False,
    ):
        self._named = [path, subset, split, text_field, streaming]
        self._field, self._streaming = text_field, streaming
        self._rows = _load(os.path.expanduser(path), subset, split, streaming)
        features = self._rows.features or {text_field: None}  # a stream may not know them
        if text_field not in features:
            raise BadInput(
                f"the data set {path} has no field {text_field!r} (its fields: "
                f"{', '.join(features)}): name the one with the text"
            )
        self.size = _known_size(self._rows) if streaming else len(self._rows)

    def identity(self) -> list[Any]:
        info = self._rows.info
        return [*self._named, self.size, str(info.version), sorted(info.download_checksums or {})]

    def pieces(self, start: Place) -> Iterator[Piece]:
        for number, text in enumerate(self._texts(start.item), start.item + 1):
            if text is not None and not isinstance(text, str):
                raise BadInput(
                    f"row {number} of {self._named[0]} has no text in {self._field!r} but "
                    f"{type(text).__name__}: name the field with the text"
                )
            if text:
                place = start._replace(item=number)
                yield Piece(text, True, True, None, place, min(number, self.size))

    def _texts(self, first: int) -> Iterator[Any]:
        if self._streaming:
            for row in self._rows.skip(first):
                yield row[self._field]
            return
        for i in range(first, len(self._rows), ROWS):
            yield from self._rows[i : i + ROWS][self._field]


def _load(path: str, subset: str | None, split: str, streaming: bool):
    try:
        import datasets
    except ImportError:
        raise BadInput(
            f"Hugging Face data sets need the datasets library: {installed_by('hf')}"
        ) from None
    datasets.disable_progress_bars()
    saved = any((Path(path) / name).exists() for name in ("dataset_dict.json", "state.json"))
    try:
        if not saved:
            return datasets.load_dataset(path, subset, split=split, streaming=streaming)
        found = datasets.load_from_disk(path)
        found = found[split] if isinstance(found, datasets.DatasetDict) else found
        return found.to_iterable_dataset() if streaming else found
    except (ValueError, OSError, KeyError, ConnectionError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise BadInput(
            f"cannot load split {split!r} of the Hugging Face data set {path} ({reason}): check "
            "its path, subset and split"
        ) from e


def _known_size(rows) -> int:
    """Rows of a stream, 0 where it does not say."""
    splits = rows.info.splits or {}
    known = splits.get(str(rows.split))
    return known.num_examples if known is not None else 0
