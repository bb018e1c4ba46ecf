#!/bin/sh
# Prints Prometheus' rules and Grafana's dashboards as objects for the Prometheus operator and Grafana's sidecar:
#   sh ops/kubernetes/monitoring.sh | kubectl apply -f -
set -eu
cd "$(dirname "$0")/.."
cat <<'HEAD'
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: { name: tgq, namespace: tgq }
spec:
  groups:
HEAD
for rules in prometheus/rules.yml prometheus/alerts.yml; do
  sed -e '1,/^groups:/d' -e 's/^/  /' "$rules"
done
cat <<'HEAD'
---
apiVersion: v1
kind: ConfigMap
metadata: { name: tgq-dashboards, namespace: tgq, labels: { grafana_dashboard: "1" } }
data:
HEAD
for dashboard in grafana/dashboards/*.json; do
  printf '  tgq-%s: |\n' "$(basename "$dashboard")"
  sed 's/^/    /' "$dashboard"
done
