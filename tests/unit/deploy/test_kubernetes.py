"""Manifests against Kubernetes' schemas and ours of KubeRay; unknown fields are refused by both."""

import copy
import subprocess
import time
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from chorale.tuner.files.home import Home
from chorale.tuner.service.access import load_access
from tests.unit.deploy.test_dockerfile import pinned

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
SCHEMA = yaml.safe_load((Path(__file__).parent / "kuberay.yaml").read_text())
KUBERNETES = "1.34"
RAY = ("ray-cluster", "ray-job")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))


def ray_document(name: str) -> dict[str, Any]:
    (document,) = documents(name)
    return document


def cluster_of(document: dict[str, Any]) -> dict[str, Any]:
    return document["spec"]["rayClusterSpec"] if document["kind"] == "RayJob" else document["spec"]


def groups_of(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def check_ray(document: dict[str, Any]) -> None:
    jsonschema.validate(document, SCHEMA)
    cluster = cluster_of(document)
    for group in groups_of(cluster):
        # KubeRay refuses resources that are said twice; labels go where the autoscaler sees them.
        assert not (
            group.get("resources") and {"num-cpus", "num-gpus", "memory", "resources"} & set(group["rayStartParams"])
        )
        assert "labels" not in group["rayStartParams"]
        check_kubernetes({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **group["template"]})


def check_kubernetes(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_every_manifest_is_checked_and_groups_with_gpus_are_asked_for_by_their_fabric():
    assert {path.stem for path in FOLDER.glob("*")} == {*RAY, "storage", "mlflow", "service"}
    groups = cluster_of(ray_document("ray-cluster"))["workerGroupSpecs"]
    containers = [group["template"]["spec"]["containers"][0] for group in groups]
    gpus = [container["resources"]["limits"].get("nvidia.com/gpu") for container in containers]
    assert sorted(zip((group["groupName"] for group in groups), gpus, strict=True)) == [("cpu", None), ("gpu", "8")]
    group = groups[gpus.index("8")]
    assert group["resources"] == {f"fabric-{group['labels']['fabric']}": "1"}


@pytest.mark.parametrize("name", ["storage", "mlflow", "service", *RAY])
def test_kinds_of_kubernetes_and_of_kuberay(name):
    for document in documents(name):
        check_ray(document) if name in RAY else check_kubernetes(document)


def broken(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the document with one mistake each."""
    mistakes = []
    for change in (
        lambda spec, cluster: spec.update(entrypont="x"),
        lambda spec, cluster: cluster.update(authOptions={"mode": "disabled"}),
        lambda spec, cluster: cluster["headGroupSpec"].update(replicas=1),
        lambda spec, cluster: cluster["workerGroupSpecs"][0].update(minReplicas="1"),
        lambda spec, cluster: cluster["workerGroupSpecs"][0]["rayStartParams"].update({"num-cpus": 4}),
        lambda spec, cluster: cluster["headGroupSpec"]["template"]["spec"]["containers"][0].update(imag="x"),
        lambda spec, cluster: cluster["headGroupSpec"]["template"]["spec"]["containers"][0].pop("name"),
    ):
        mistake = copy.deepcopy(document)
        change(mistake["spec"], cluster_of(mistake))
        mistakes.append(mistake)
    return mistakes


@pytest.mark.parametrize("name", RAY)
def test_mistakes_are_found(name):
    for mistake in broken(ray_document(name)):
        with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
            check_ray(mistake)


@pytest.mark.parametrize("name", RAY)
def test_every_container_is_held_to_what_it_asks_for_and_has_no_rights_and_the_ray_of_the_image(name):
    assert cluster_of(ray_document(name))["rayVersion"] == pinned("ray")
    for group in groups_of(cluster_of(ray_document(name))):
        spec = group["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert {volume["name"] for volume in spec["volumes"]} >= {"data"}
        for container in spec["containers"]:
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert not container["securityContext"]["allowPrivilegeEscalation"]


def test_the_service_has_its_tokens_and_its_port_and_mlflow_is_where_clusters_look_for_it():
    deployment, service = documents("service")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    options = dict(word.split("=") for word in container["command"][2:])
    assert container["command"][:2] == ["chorale", "serve"]
    assert int(options["--port"]) == container["ports"][0]["containerPort"] == service["spec"]["ports"][0]["port"]
    assert any(options["--tokens"].startswith(mount["mountPath"]) for mount in container["volumeMounts"])
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    _, service = documents("mlflow")
    address = f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    for name in RAY:
        for group in groups_of(cluster_of(ray_document(name))):
            (container,) = group["template"]["spec"]["containers"]
            assert {"name": "MLFLOW_TRACKING_URI", "value": address} in container["env"]


def test_a_made_token_file_is_one_that_the_service_reads(tmp_path):
    made = subprocess.run(
        [ROOT / "deploy" / "make-secrets", tmp_path / "secrets"], capture_output=True, text=True, check=True
    )
    token = made.stdout.split()[-1]
    access = load_access(str(tmp_path / "secrets" / "tokens.yaml"), "0.0.0.0", Home(tmp_path), time.time)
    assert access.caller(f"Bearer {token}").name == "admin"
