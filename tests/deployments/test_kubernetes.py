"""The Kubernetes manifests against schemas; no cluster. Broken copies show that each check bites."""

from __future__ import annotations

import asyncio
import copy
import importlib.metadata
import inspect
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from prefect.client.orchestration import PrefectClient
from prefect.deployments.steps import set_working_directory
from prefect.utilities.templating import find_placeholders
from prefect.workers.base import BaseJobConfiguration

from tests.deployments.conftest import ROOT

pytest.importorskip(
    "kubernetes_validate", reason="kubernetes-validate is not in this environment; it is in the dev group"
)
from tests.deployments.manifests import check, containers, pod_templates

FOLDER = ROOT / "deployments" / "kubernetes"
FILES = ("storage.yaml", "access.yaml", "worker.yaml", "raycluster.yaml", "rayjob.yaml")
TEMPLATE: dict[str, Any] = json.loads((FOLDER / "base-job-template.json").read_text())
Broken = Callable[[dict[str, Any]], Any]


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


class JobConfiguration(BaseJobConfiguration):
    """Prefect's configuration with what its Kubernetes worker adds, so that the template resolves as it does there."""

    namespace: str
    job_manifest: dict[str, Any]
    stream_output: bool
    pod_watch_timeout_seconds: int


def job(values: dict[str, Any], template: dict[str, Any] = TEMPLATE) -> dict[str, Any]:
    """The manifest of a flow run's job, its variables resolved by Prefect."""
    # The template names no block or variable of a server. So none is asked; a port that nobody serves shows that.
    nobody = PrefectClient("http://127.0.0.1:9/api")
    filled = JobConfiguration.from_template_and_values(copy.deepcopy(template), {"name": "run"} | values, client=nobody)
    found = asyncio.run(filled)
    assert not find_placeholders(found.job_manifest), "a placeholder names no variable"
    return found.job_manifest


@pytest.mark.parametrize("name", FILES)
def test_every_manifest_fits_its_schema_and_the_rules(name: str):
    found = manifests(name)
    assert found
    for manifest in found:
        check(manifest)
        assert manifest["kind"] == "Namespace" or manifest["metadata"]["namespace"] == "rlhf"


def head(cluster: dict[str, Any]) -> dict[str, Any]:
    return cluster["spec"]["headGroupSpec"]["template"]["spec"]


BROKEN: dict[str, tuple[str, Broken, str]] = {
    "wrong field": ("raycluster.yaml", lambda m: m["spec"].update(rayVersoin="2.60.0"), "rayVersoin"),
    "head missing": ("raycluster.yaml", lambda m: m["spec"].pop("headGroupSpec"), "headGroupSpec"),
    "wrong indentation": (
        "raycluster.yaml",
        lambda m: m.update(headGroupSpec=m["spec"]["headGroupSpec"]),
        "headGroupSpec",
    ),
    "number for a string": (
        "raycluster.yaml",
        lambda m: m["spec"]["headGroupSpec"]["rayStartParams"].update(x=0),
        "rayStart",
    ),
    "wrong field in a pod": ("raycluster.yaml", lambda m: head(m).update(tolerances=[]), "tolerances"),
    "image missing": ("raycluster.yaml", lambda m: head(m)["containers"][0].pop("image"), "no image"),
    "image without tag": ("worker.yaml", lambda m: next(containers(m)).update(image="host:5000/rlhf"), "no image"),
    "root": ("raycluster.yaml", lambda m: head(m)["securityContext"].update(runAsUser=0), "root"),
    "escalation": ("rayjob.yaml", lambda m: next(containers(m)).pop("securityContext"), "escalate"),
    "no limits": ("worker.yaml", lambda m: next(containers(m))["resources"].pop("limits"), "limits"),
    "volume unknown": ("raycluster.yaml", lambda m: head(m)["volumes"].pop(0), "no volumes"),
    "key in clear text": (
        "worker.yaml",
        lambda m: next(containers(m))["env"].append({"name": "PREFECT_API_KEY", "value": "pnu_1"}),
        "clear text",
    ),
    "selector missing": ("worker.yaml", lambda m: m["spec"].pop("selector"), "selector"),
    "wrong mode": ("rayjob.yaml", lambda m: m["spec"].update(submissionMode="Job"), "submissionMode"),
    "wrong type of storage": ("storage.yaml", lambda m: m["spec"].update(accessModes="ReadWriteMany"), "accessModes"),
    "misspelt rule": ("access.yaml", lambda m: m["metadata"].update(labls={}), "labls"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_copy_is_refused(case: str):
    name, damage, where = BROKEN[case]
    manifest = copy.deepcopy(manifests(name)[0])
    damage(manifest)
    with pytest.raises(ValueError, match=where):
        check(json.loads(json.dumps(manifest)))


def test_lines_that_are_indented_wrongly_are_refused():
    text = (FOLDER / "worker.yaml").read_text()
    shifted = text.replace("      containers:\n", "    containers:\n")
    assert shifted != text
    with pytest.raises((ValueError, yaml.YAMLError)):
        check(yaml.safe_load(shifted))


def test_the_job_template_becomes_a_job_that_kubernetes_takes():
    check(job({}))
    wide = job(
        {"gpus": "1", "node_selector": {"pool": "gpu"}, "grace_seconds": 300, "command": "prefect flow-run execute"}
    )
    pod = wide["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 300
    assert pod["nodeSelector"] == {"pool": "gpu"}
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_a_job_template_with_a_misspelt_field_or_variable_is_refused():
    misspelt = json.loads(json.dumps(TEMPLATE).replace('"nodeSelector"', '"nodeSelectors"'))
    with pytest.raises(ValueError, match="nodeSelectors"):
        check(job({}, misspelt))
    imageless = copy.deepcopy(TEMPLATE)
    imageless["variables"]["properties"].pop("image")
    with pytest.raises(ValueError, match="no image"):
        check(job({}, imageless))


def test_every_variable_is_used_and_every_placeholder_has_one():
    used = {placeholder.name for placeholder in find_placeholders(TEMPLATE["job_configuration"])}
    assert used == set(TEMPLATE["variables"]["properties"])


def test_the_deployment_sets_variables_and_parameters_that_exist():
    project = yaml.safe_load((FOLDER / "prefect.yaml").read_text())
    (deployment,) = project["deployments"]
    assert set(deployment["work_pool"]["job_variables"]) <= set(TEMPLATE["variables"]["properties"])
    check(job(deployment["work_pool"]["job_variables"]))
    from flows.post_training import post_training

    post_training.validate_parameters(deployment["parameters"])
    assert [schedule["active"] for schedule in deployment["schedules"]] == [False]
    (cluster,) = manifests("raycluster.yaml")
    name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
    assert f"cluster.address=ray://{name}-head-svc.{namespace}.svc:10001" in deployment["parameters"]["overrides"]


def test_the_pull_step_is_called_as_prefect_defines_it():
    (step,) = yaml.safe_load((FOLDER / "prefect.yaml").read_text())["pull"]
    ((name, arguments),) = step.items()
    assert name == f"prefect.deployments.steps.{set_working_directory.__name__}"
    inspect.signature(set_working_directory).bind(**arguments)


def test_ranks_have_as_many_gpus_as_ray_is_told_and_are_kept_apart_from_other_nodes():
    (cluster,) = manifests("raycluster.yaml")
    (group,) = cluster["spec"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == group["rayStartParams"]["num-gpus"]
    assert pod["nodeSelector"] and pod["tolerations"]
    for template in pod_templates(cluster):
        (container,) = template["spec"]["containers"]
        seconds = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
        assert seconds < template["spec"]["terminationGracePeriodSeconds"], "Ray must have ended before the kill"


def test_every_pod_that_talks_to_ray_is_let_through_and_has_the_token():
    policy = next(m for m in manifests("access.yaml") if m["kind"] == "NetworkPolicy")
    label = policy["spec"]["podSelector"]["matchLabels"]
    (cluster,), (submitter,) = manifests("raycluster.yaml"), manifests("rayjob.yaml")
    for template in (*pod_templates(cluster), *pod_templates(submitter), *pod_templates(job({}))):
        assert label.items() <= template["metadata"]["labels"].items()
    secret = cluster["spec"]["authOptions"]["secretName"]
    for manifest in (submitter, job({})):
        (container,) = containers(manifest)
        tokens = [entry["valueFrom"]["secretKeyRef"] for entry in container["env"] if entry["name"] == "RAY_AUTH_TOKEN"]
        assert tokens == [{"name": secret, "key": "auth_token"}]


def test_versions_are_the_same_everywhere():
    dockerfile = (ROOT / "deployments" / "docker" / "Dockerfile").read_text()
    pins = dict(re.findall(r'"([a-z-]+)(?:\[[a-z,]+\])?==([\d.]+)"', dockerfile))
    (cluster,) = manifests("raycluster.yaml")
    assert pins["ray"] == cluster["spec"]["rayVersion"] == importlib.metadata.version("ray")
    project = yaml.safe_load((FOLDER / "prefect.yaml").read_text())
    assert pins["prefect"] == project["prefect-version"] == importlib.metadata.version("prefect")
    assert set(re.findall(r"python:?(3\.\d+)", dockerfile)) == {"3.11"}
    assert re.search(r"^USER 1000:1000$", dockerfile, re.MULTILINE)
