"""Which errors are retried, and what happens to the engines before that."""

from __future__ import annotations

import pytest
from prefect.logging import disable_run_logger
from prefect.states import Failed

from rlhf_core import errors
from rlhf_core.errors import DataError, EngineError, OutOfMemory, RlhfError
from tasks.retrying import engines, is_transient
from tests.tasks.open_run import open_run

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RlhfError)]
HEALED_BY_TIME = {"NumericsError", "EngineError", "OutOfMemory", "RemoteScorerError"}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_only_what_time_or_a_fresh_engine_heals_is_retried(kind):
    assert is_transient(None, None, Failed(data=kind("what, where, what to do"))) == (kind.__name__ in HEALED_BY_TIME)


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyError("a bug"), MemoryError()])
def test_an_error_of_unknown_kind_is_not_retried(error):
    assert not is_transient(None, None, Failed(data=error))


@pytest.mark.parametrize(("error", "is_dropped"), [(EngineError, True), (OutOfMemory, True), (DataError, False)])
def test_engines_are_dropped_before_a_retry_and_kept_otherwise(tmp_path, error, is_dropped):
    with open_run(tmp_path) as (run, runtime), disable_run_logger():
        scorer = runtime.scorer()
        with pytest.raises(error, match="broke"), engines(run, "scores") as given:
            assert given is runtime
            raise error("it broke; try again.")
        assert (runtime.scorer() is not scorer) == is_dropped


def test_a_stage_that_ends_well_has_its_time_recorded(tmp_path):
    with open_run(tmp_path) as (run, runtime), engines(run, "scores", 3):
        pass
    assert '"stage": "scores"' in (runtime.folder.metrics / "timing.jsonl").read_text()
