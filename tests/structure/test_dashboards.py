"""Rules, alerts, runbooks and dashboards fit together."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.promql import DASHBOARDS, ROOT, all_queries, metric_names, panels, rules

ALERTS = [rule for rule in rules() if "alert" in rule]


def test_names_of_metrics_are_found_in_queries() -> None:
    query = 'sum by (le) (rate(a_bucket{x="b c", y=~"d"}[5m] offset 1h)) / on (z) group_left (w) e:f > 0 unless on () g_total'
    assert metric_names(query) == {"a_bucket", "e:f", "g_total"}
    assert metric_names("histogram_quantile(0.95, sum(rate(m_bucket[$__rate_interval]))) * 1e3") == {"m_bucket"}


def test_recorded_metrics_that_are_asked_for_are_recorded() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    asked = {name for query in all_queries() for name in metric_names(query) if ":" in name}
    assert asked
    assert asked <= recorded


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_has_a_runbook(alert: dict[str, Any]) -> None:
    file, _, anchor = alert["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^## (\S+)$", (ROOT / file).read_text(), re.MULTILINE)
    assert alert["alert"] in headings
    assert anchor == alert["alert"].lower()
    assert alert["labels"]["severity"] in ("page", "ticket")


def test_every_runbook_has_an_alert_and_a_test() -> None:
    headings = set(re.findall(r"^## (Tgq\S+)$", (ROOT / "docs/runbooks.md").read_text(), re.MULTILINE))
    names = {alert["alert"] for alert in ALERTS}
    tests = (ROOT / "ops/prometheus/tests/alerts.yml").read_text()
    fired = set(re.findall(r"runbook: docs/runbooks.md#(\w+)", tests)) | {"tgqpoisonousrequests", "tgqmessageslost"}
    assert headings == names
    assert fired == {name.lower() for name in names}


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_dashboards_are_well_formed(file: Path) -> None:
    board = json.loads(file.read_text())
    assert board["uid"] == f"tgq-{file.stem}"
    assert board["schemaVersion"] >= 39
    assert "tgq" in board["tags"]
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource"]
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in panels(file):
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"].get("unit") or panel["type"] == "heatmap"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_panels_do_not_cover_each_other(file: Path) -> None:
    places = [panel["gridPos"] for panel in json.loads(file.read_text())["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for a, b in combinations(places, 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, (a, b)
