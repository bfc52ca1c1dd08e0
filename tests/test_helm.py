"""The Helm chart renders with Go's template engine to objects that Kubernetes' own schemas accept."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import require

from gpudiag import __version__
from gpudiag.agent.collectors.host_root import HostRoot
from gpudiag.agent.configfile import load
from gpudiag.cli.database import database_url

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy/helm/gpudiag"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": {
        "serviceMonitor": {"enabled": True, "interval": "15s", "labels": {"a": "b"}},
        "forwardSecret": "db",
        "kernelLog": True,
    },
    "labels": {"podLabels": ["team", "app.kubernetes.io/name"]},
    "least": {
        "runtimeClassName": "",
        "priorityClassName": "",
        "tolerations": [],
        "nodeSelector": {},
    },
}


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("go")
    program = folder / "render"
    environment = {
        **os.environ,
        "GOCACHE": str(folder / "cache"),
        "GOFLAGS": "-mod=mod",
        "GO111MODULE": "off",
    }
    subprocess.run(
        [require("go"), "build", "-o", str(program), str(ROOT / "tests/helm/render.go")],
        env=environment,
        check=True,
    )
    return [str(program)]


def rendered(renderer: list[str], tmp_path: Path, changes: dict[str, Any]) -> list[dict[str, Any]]:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    data = {
        "Values": {**VALUES, **changes},
        "Release": {"Name": "diag", "Namespace": "monitoring"},
        "Chart": {"Name": chart["name"], "AppVersion": chart["appVersion"]},
    }
    path = tmp_path / "values.json"
    path.write_text(json.dumps(data))
    shown = subprocess.run(
        [*renderer, str(CHART), str(path)], capture_output=True, text=True, check=True
    ).stdout
    return [document for document in yaml.safe_load_all(shown) if document]


@pytest.mark.integration
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_kubernetes_accepts_what_the_chart_renders(renderer: list[str], tmp_path: Path, variant: str) -> None:
    import kubernetes_validate

    documents = rendered(renderer, tmp_path, VARIANTS[variant])
    kinds = [document["kind"] for document in documents]
    access = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding"] if variant == "labels" else []
    assert kinds == ["ConfigMap", "DaemonSet", *access, "Service"] + (
        ["ServiceMonitor"] if variant == "everything" else []
    )
    for document in documents:
        if document["kind"] != "ServiceMonitor":  # a custom resource: its schema comes with the operator
            kubernetes_validate.validate(document, "1.31", strict=True)


@pytest.mark.integration
def test_the_pod_has_what_the_agent_needs_and_no_more(renderer: list[str], tmp_path: Path) -> None:
    daemonset = rendered(renderer, tmp_path, {})[1]
    pod = daemonset["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["hostPID"] is True
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert container["image"] == f"gpudiag:{__version__}"
    paths = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert "/var/lib/kubelet/pod-resources" in paths
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.integration
def test_everything_of_the_host_is_mounted_where_the_agent_looks_for_it(
    renderer: list[str], tmp_path: Path
) -> None:
    configmap, daemonset, *_ = rendered(renderer, tmp_path, {"kernelLog": True})
    path = tmp_path / "gpudiag.toml"
    path.write_text(configmap["data"]["gpudiag.toml"])
    config = load(path, environ={})
    pod = daemonset["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    host = HostRoot.at(config.agent.root)
    assert mounts["kmsg"] == host.path("dev/kmsg")
    assert mounts["proc"] == host.path("proc")
    assert mounts["sys"] == host.path("sys")
    assert Path(config.sources.pod_resources).parent == Path(mounts["pod-resources"])
    assert config.storage.url.startswith(f"sqlite:///{mounts['data']}/")
    assert config.agent.runtime_dir == mounts["runtime"]
    assert container["securityContext"] == {"readOnlyRootFilesystem": True, "privileged": True}


@pytest.mark.integration
def test_the_schema_is_upgraded_before_the_agent_starts_and_where_the_agent_will_look(
    renderer: list[str], tmp_path: Path
) -> None:
    configmap, daemonset, *_ = rendered(renderer, tmp_path, {"kernelLog": True, "forwardSecret": "db"})
    pod = daemonset["spec"]["template"]["spec"]
    (upgrade,), (agent,) = pod["initContainers"], pod["containers"]
    assert (upgrade["image"], upgrade["args"]) == (agent["image"], ["db", "upgrade"])
    mounts = {mount["mountPath"]: mount for mount in agent["volumeMounts"]}
    assert all(mount == mounts[mount["mountPath"]] for mount in upgrade["volumeMounts"])
    assert {"/etc/gpudiag", "/var/lib/gpudiag"} <= {mount["mountPath"] for mount in upgrade["volumeMounts"]}
    assert "privileged" not in upgrade["securityContext"]
    assert daemonset["spec"]["updateStrategy"]["rollingUpdate"] == {
        "maxUnavailable": 1
    }  # no surge: one at a time
    path = tmp_path / "gpudiag.toml"
    path.write_text(configmap["data"]["gpudiag.toml"])
    assert database_url(None, {}, path) == "sqlite:////var/lib/gpudiag/gpudiag.db"


@pytest.mark.integration
def test_a_missing_value_is_an_error(renderer: list[str], tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        rendered(renderer, tmp_path, {"image": {}})


def test_the_chart_has_the_programs_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_the_config_in_the_values_is_one_the_agent_accepts(tmp_path: Path) -> None:
    path = tmp_path / "gpudiag.toml"
    path.write_text(VALUES["config"])
    config = load(path, environ={})
    assert str(config.metrics.listen).endswith(f":{VALUES['port']}")


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(VALUES) == set(schema["properties"]) - {"global"}
