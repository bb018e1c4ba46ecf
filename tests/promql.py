"""The names of metrics in Prometheus' query language, and the queries of our rules, alerts, dashboards and autoscalers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
DASHBOARDS = sorted((ROOT / "ops/grafana/dashboards").glob("*.json"))
RULES = [ROOT / "ops/prometheus/rules.yml", ROOT / "ops/prometheus/alerts.yml"]
PROMETHEUS_OWN = {"up", "ALERTS"}

_KEYWORDS = {
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "and",
    "or",
    "unless",
    "offset",
    "bool",
    "inf",
}


def metric_names(expression: str) -> set[str]:
    """The metrics a query names, with the suffixes of histograms."""
    text = re.sub(r'"[^"]*"', "", expression)
    text = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    names = re.findall(r"(?<![\w:.$])[a-zA-Z_:][\w:]*(?!\w)(?!\s*\()", text)
    return {name for name in names if name not in _KEYWORDS and not re.fullmatch(r"\d+[smhd]|[smhd]\d*", name)}


def rules() -> list[dict[str, Any]]:
    return [rule for file in RULES for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def panels(dashboard: Path) -> list[dict[str, Any]]:
    return [panel for panel in json.loads(dashboard.read_text())["panels"] if panel["type"] != "row"]


def dashboard_queries(dashboard: Path) -> list[tuple[str, str]]:
    """Title of the panel and query, with Grafana's own variables given values."""
    return [
        (panel["title"], target["expr"].replace("$__rate_interval", "1m"))
        for panel in panels(dashboard)
        for target in panel["targets"]
    ]


def scaler_queries() -> list[str]:
    documents = yaml.safe_load_all((ROOT / "ops/kubernetes/components/keda/scaled-object.yaml").read_text())
    return [trigger["metadata"]["query"] for document in documents for trigger in document["spec"]["triggers"]]


def all_queries() -> list[str]:
    boards = [query for dashboard in DASHBOARDS for _, query in dashboard_queries(dashboard)]
    return [*boards, *(rule["expr"] for rule in rules()), *scaler_queries()]
