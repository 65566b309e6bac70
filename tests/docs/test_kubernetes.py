"""The Helm chart and the systemd units pass their tools and Kubernetes' schemas, and fit the options of the commands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from node_manager.__main__ import parse_args
from registry.__main__ import main as registry
from tests.conftest import bound, require

ROOT = Path(__file__).parents[2]
CHART = ROOT / "kubernetes" / "udo"
SCHEMAS = "1.31"
TLS: dict[str, Any] = {"tls": {"secret": "udo-tls"}}
POSTGRESQL = TLS | {"registry": {"database": {"secret": "db"}, "replicas": 3}}
ALL = TLS | {
    "registry": {"database": {"secret": "db"}, "replicas": 2, "trustedKeys": "keys", "shared": {"existingClaim": "nfs"}},
    "token": {"secret": "mine"},
    "images": {"pullSecrets": ["a"]},
    "node": {"nodeSelector": {"spark": "yes"}, "tolerations": [{"operator": "Exists"}]},
}
CASES = {"sqlite": TLS, "postgresql": POSTGRESQL, "all": ALL}


def helm() -> Any:
    """Import Helm's own library."""
    if find_spec("helm_python") is None:
        require("helm-python-sdk", "pip install helm-python-sdk==0.2.2: Helm's library, with its templates, lints and schemas of values")
    return import_module("helm_python")


def rendered(case: str) -> list[dict[str, Any]]:
    files = helm().Chart.load(str(CHART)).render(CASES[case], name="udo", namespace="spark")
    manifests = [text for name, text in sorted(files.items()) if name.endswith(".yaml")]
    return [document for text in manifests for document in yaml.safe_load_all(text) if document]


@pytest.mark.parametrize("case", CASES)
def test_the_chart_is_accepted_by_helm_and_by_the_schemas_of_kubernetes(case: str) -> None:
    found = helm().lint(str(CHART), CASES[case], strict=True)
    assert found["errors"] == [] and {m["error"] for m in found["messages"]} <= {"icon is recommended"}
    documents = rendered(case)
    assert {"StatefulSet", "DaemonSet", "Service"} <= {d["kind"] for d in documents}
    for document in documents:
        kubernetes_validate.validate(document, SCHEMAS, strict=True)
        document["metadata"]["nmae"] = "?"  # an unknown field, to show that the validation works
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(document, SCHEMAS, strict=True)


@pytest.mark.parametrize("case", CASES)
def test_the_daemons_understand_what_the_chart_tells_them(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    by_kind = {d["kind"]: d for d in rendered(case)}
    count = by_kind["StatefulSet"]["spec"]["replicas"]
    pods = {kind: by_kind[kind]["spec"]["template"]["spec"] for kind in ("StatefulSet", "DaemonSet")}
    node = parse_args([a for a in pods["DaemonSet"]["containers"][0]["args"] if not a.startswith("--token-file")])
    port, service = by_kind["Service"]["spec"]["ports"][0]["port"], by_kind["Service"]["metadata"]["name"]
    assert node.registry.split(",") == [f"https://{service}-{n}.{service}.spark.svc:{port}" for n in range(count)]
    assert by_kind["StatefulSet"]["metadata"]["name"] == by_kind["StatefulSet"]["spec"]["serviceName"] == service
    arguments = pods["StatefulSet"]["containers"][0]["args"]
    with pytest.raises(SystemExit):
        registry(["--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {a.partition("=")[0] for a in arguments} <= known
    assert f"--listen=0.0.0.0:{port}" in arguments
    for spec in pods.values():
        mounted = {m["name"] for c in spec["containers"] for m in c["volumeMounts"]}
        claimed = {t["metadata"]["name"] for t in by_kind["StatefulSet"]["spec"].get("volumeClaimTemplates", ())}
        assert mounted <= {v["name"] for v in spec["volumes"]} | claimed
    home = next(v for v in pods["DaemonSet"]["volumes"] if v["name"] == "home")
    assert home["hostPath"]["path"] == str(node.home)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "tls.secret: expected"),
        (TLS | {"registry": {"replicas": 2}}, "registry.database.secret"),
        (TLS | {"node": {"usr": 1}}, "usr"),
        (TLS | {"node": {"sandbox": "maybe"}}, "sandbox"),
    ],
)
def test_values_that_cannot_work_are_refused_with_the_value_that_is_meant(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm().HelmError, match=said):
        helm().Chart.load(str(CHART)).render(values, name="udo", namespace="spark")


def test_the_job_of_the_spark_operator_names_what_the_chart_makes() -> None:
    job = yaml.safe_load((ROOT / "kubernetes" / "examples" / "spark-application.yaml").read_text("utf-8"))
    documents = rendered("sqlite")
    daemon = next(d for d in documents if d["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    node = parse_args([a for a in daemon["containers"][0]["args"] if not a.startswith("--token-file")])
    conf, executor = job["spec"]["sparkConf"], job["spec"]["executor"]
    assert conf["spark.udo.registry"] == node.registry
    assert conf["spark.udo.node"] == f"{node.home}/node.sock"
    assert executor["securityContext"]["runAsUser"] == daemon["containers"][0]["securityContext"]["runAsUser"]
    folders = {v["name"]: v.get("hostPath", {}).get("path") for v in job["spec"]["volumes"]}
    assert [folders[m["name"]] for m in executor["volumeMounts"]] == [str(node.home)]


@pytest.mark.parametrize("unit", ["udo-registry.service", "udo-node.service"])
def test_systemd_takes_the_units_and_udo_their_commands(unit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "systemd" / unit).read_text("utf-8")
    command = re.search(r"^ExecStart=/opt/udo/bin/udo (\w+) (.*)$", text, re.MULTILINE)
    assert command
    helped = subprocess.run(
        [sys.executable, "-m", "udo_cli", command[1], "--help"], capture_output=True, text=True, timeout=bound(60), check=True
    ).stdout
    assert set(re.findall(r"--[a-z-]+", command[2])) <= set(re.findall(r"--[a-z-]+", helped))
    (tmp_path / unit).write_text(text.replace("/opt/udo/bin/udo", "/bin/true"))
    program = shutil.which("systemd-analyze") or require("systemd-analyze", "Debian's package systemd has it")
    done = subprocess.run([program, "verify", str(tmp_path / unit)], capture_output=True, text=True, timeout=bound(60), check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
