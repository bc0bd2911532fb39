"""Rows of a Hugging Face data set."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from rlhf_core.config.data import SourceConfig
from rlhf_core.data.local_files import Row
from rlhf_core.errors import DataError

HUB_PREFIX = "hub:"


def is_hub(source: SourceConfig) -> bool:
    return source.path.startswith(HUB_PREFIX)


def hub_rows(source: SourceConfig) -> Iterator[Row]:
    """Rows of `hub:NAME`; with a `limit` they are streamed, so that a huge set is not downloaded whole.

    Raises:
        DataError: there is no such data set, subset or split, or the hub cannot be reached.
    """
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    name = source.path.removeprefix(HUB_PREFIX)
    place = f"{source.path} (subset {source.subset or 'default'}, split {source.split})"
    try:
        rows = load_dataset(name, source.subset, split=source.split, streaming=source.limit is not None)
        for number, row in enumerate(islice(rows, source.limit), start=1):
            yield f"{source.path}, {source.split} row {number}", dict(row)
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise DataError(
            f"{place} cannot be loaded: {type(error).__name__}: {first_line}. Check the name, subset and split, "
            "and that the hub can be reached (HF_HUB_OFFLINE and HF_DATASETS_OFFLINE forbid it when set); or give a "
            "local file."
        ) from error
