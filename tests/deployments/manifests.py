"""What a manifest must hold: Kubernetes' own schemas, KubeRay's fields, and this project's rules for pods."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Literal

import kubernetes_validate
from pydantic import BaseModel, ConfigDict, Field

KUBERNETES = "1.34"
Manifest = dict[str, Any]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Metadata(Strict):
    name: str | None = None
    generateName: str | None = None
    namespace: str
    labels: dict[str, str] = Field(default_factory=dict)


class AuthOptions(Strict):
    mode: Literal["token", "disabled"]
    secretName: str


class HeadGroup(Strict):
    serviceType: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    rayStartParams: dict[str, str]
    template: Manifest


class WorkerGroup(Strict):
    groupName: str = Field(min_length=1)
    replicas: int = Field(ge=0)
    minReplicas: int = Field(ge=0)
    maxReplicas: int = Field(ge=0)
    rayStartParams: dict[str, str]
    template: Manifest


class RayClusterSpec(Strict):
    rayVersion: str
    authOptions: AuthOptions
    headGroupSpec: HeadGroup
    workerGroupSpecs: list[WorkerGroup] = Field(min_length=1)


class SubmitterConfig(Strict):
    backoffLimit: int = Field(ge=0)


class RayJobSpec(Strict):
    clusterSelector: dict[str, str]
    entrypoint: str = Field(min_length=1)
    runtimeEnvYAML: str
    submissionMode: Literal["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]
    submitterConfig: SubmitterConfig
    submitterPodTemplate: Manifest


class RayCluster(Strict):
    """The fields of KubeRay's RayCluster (ray.io/v1, CRD reference of 1.6) that this project uses; no others pass."""

    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayCluster"]
    metadata: Metadata
    spec: RayClusterSpec


class RayJob(Strict):
    """The fields of KubeRay's RayJob that this project uses."""

    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: Metadata
    spec: RayJobSpec


def check(manifest: Manifest) -> None:
    """Refuse a manifest that the cluster would refuse, or that breaks the project's rules.

    Raises:
        ValueError: it does; the message says where.
    """
    try:
        _check_schema(manifest)
    except kubernetes_validate.ValidationError as error:
        raise ValueError(f"{manifest.get('kind')}: {'/'.join(map(str, error.path))}: {error.message}") from error
    for pod in pod_templates(manifest):
        _check_pod(pod)


def pod_templates(manifest: Manifest) -> Iterator[Manifest]:
    spec = manifest.get("spec", {})
    match manifest["kind"]:
        case "RayCluster":
            yield spec["headGroupSpec"]["template"]
            yield from (group["template"] for group in spec["workerGroupSpecs"])
        case "RayJob":
            yield spec["submitterPodTemplate"]
        case "Deployment" | "Job":
            yield spec["template"]
        case _:
            return


def containers(manifest: Manifest) -> Iterator[Manifest]:
    for pod in pod_templates(manifest):
        yield from pod["spec"]["containers"]


def _check_schema(manifest: Manifest) -> None:
    kinds = {"RayCluster": RayCluster, "RayJob": RayJob}
    if model := kinds.get(manifest["kind"]):
        model.model_validate(manifest)
        for pod in pod_templates(manifest):
            # The schemas name no bare template as a resource: an apps/v1 Deployment holds one.
            holder = {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": {"name": "x"},
                "template": copy.deepcopy(pod),
            }
            kubernetes_validate.validate(holder, KUBERNETES, strict=True)
    else:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def _check_pod(template: Manifest) -> None:
    pod = template["spec"]
    security = pod.get("securityContext", {})
    _require(security.get("runAsNonRoot") is True and security.get("runAsUser", 0) > 0, "the pod may run as root")
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    for container in pod["containers"]:
        name = container["name"]
        image = container.get("image", "")
        _require(":" in image.rpartition("/")[2] and not image.endswith(":latest"), f"{name}: no image with a tag")
        _require(
            container.get("securityContext", {}).get("allowPrivilegeEscalation") is False,
            f"{name}: privileges may escalate",
        )
        resources = container.get("resources", {})
        _require(
            all(key in resources.get(part, {}) for part in ("requests", "limits") for key in ("cpu", "memory")),
            f"{name}: cpu and memory need requests and limits",
        )
        mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
        _require(mounts <= volumes, f"{name}: mounts {sorted(mounts - volumes)}, which are no volumes")
        for entry in container.get("env", []):
            is_secret = any(word in entry["name"] for word in ("KEY", "TOKEN", "AUTH_STRING", "NOTIFY"))
            is_reference = entry["name"].endswith(("_NAME", "_KEY")) and "SECRET" in entry["name"]
            _require("value" not in entry or not is_secret or is_reference, f"{name}: {entry['name']} in clear text")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
