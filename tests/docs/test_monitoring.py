"""docker/monitoring: alert rules that promtool accepts, and a dashboard; both use only metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

from tests.conftest import bound, require

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker" / "monitoring"
PAGES = [ROOT / "node_manager" / "rpc" / "metrics.py", ROOT / "registry" / "http" / "metrics.py"]


def test_promtool_takes_the_configuration_and_the_rules() -> None:
    promtool = shutil.which("promtool") or require("promtool", "Debian's package prometheus has it")
    for command in (["check", "rules", "alerts.yml"], ["check", "config", "prometheus.yml"]):
        done = subprocess.run([promtool, *command], cwd=FOLDER, capture_output=True, text=True, timeout=bound(60), check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_dashboard_ask_for_metrics_that_the_pages_have() -> None:
    known = {name for page in PAGES for name in re.findall(r'"(udo_\w+)"', page.read_text("utf-8"))}
    asked = re.findall(r"expr: (.*)", (FOLDER / "alerts.yml").read_text("utf-8"))
    panels = json.loads((FOLDER / "grafana.json").read_text("utf-8"))["panels"]
    asked += [target["expr"] for panel in panels for target in panel["targets"]]
    names = {re.sub(r"_(total|bucket|count|sum|info)$", "", name) for text in asked for name in re.findall(r"udo_\w+", text)}
    assert len(asked) > 20 and names <= known
