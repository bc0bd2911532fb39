"""Which flow runs have opened a run folder, and whether they closed it again: `flow_runs.jsonl`.

The file is written by the holder of the folder's lock alone. So an opening that was not closed, seen by a later holder,
is one whose process was lost.
"""

from __future__ import annotations

import os
import socket
import uuid
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, ValidationError

from rlhf_core.data.json_lines import append_json_line, read_json_lines
from rlhf_core.data.store import RunFolder
from rlhf_core.errors import DataError

PROCESS = uuid.uuid4().hex
"""This process; its number alone would not do, for in a container every process has the same."""


class Opening(BaseModel):
    """A process has taken the run folder for a flow run."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    opening: int
    identity: str
    """Of the folder: paths repeat from machine to machine, this does not."""
    flow_run_id: str
    process: str
    pid: int
    host: str
    time: str
    is_closed: bool = False

    @property
    def is_of_this_process(self) -> bool:
        return self.process == PROCESS


def read_openings(folder: RunFolder) -> tuple[Opening, ...]:
    """All openings in order.

    Raises:
        DataError: a line is malformed.
    """
    found: dict[int, dict[str, object]] = {}
    for row in read_json_lines(folder.flow_runs):
        found.setdefault(int(row.get("opening", 0)), {}).update(row)
    try:
        return tuple(Opening.model_validate(row) for row in found.values())
    except ValidationError as error:
        raise DataError(f"{folder.flow_runs} is no list of flow runs: {error}. Remove the file and resume.") from error


def record_opening(folder: RunFolder, flow_run_id: str) -> Opening:
    """Note that this process has taken the folder; called with the folder's lock held."""
    earlier = read_openings(folder)
    opening = Opening(
        opening=max((one.opening for one in earlier), default=0) + 1,
        identity=earlier[0].identity if earlier else uuid.uuid4().hex,
        flow_run_id=flow_run_id,
        process=PROCESS,
        pid=os.getpid(),
        host=socket.gethostname(),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    append_json_line(folder.flow_runs, opening.model_dump(exclude={"is_closed"}))
    return opening


def record_closing(folder: RunFolder) -> None:
    """Note that the newest opening has come to its end, well or badly, before the lock is released."""
    openings = read_openings(folder)
    if openings and not openings[-1].is_closed:
        append_json_line(folder.flow_runs, {"opening": openings[-1].opening, "is_closed": True})
