"""The Grafana dashboard asks only for what the server exports."""
import json
import re

from conftest import ROOT
from serving import serving

DASHBOARD = ROOT / "docs" / "grafana" / "mimo.json"
QUESTION = "Tom has 32 feathers. Jack has twice as many feathers as Tom. What is the number of feathers that Jack has?"
# Given by the scrape, and by the histograms.
OTHER_LABELS = {"instance", "le"}


def test_every_query_of_the_dashboard_is_exported(mimo, tmp_path):
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    queries += [item["query"]["query"] for item in dashboard["templating"]["list"] if item["type"] == "query"]
    assert len(queries) > 30
    with serving(tmp_path) as server:
        status, _, _ = server.post("/v1/chat/completions", messages=[{"role": "user", "content": QUESTION}], temperature=0)
        assert status == 200
        _, _, text = server.request("GET", "/metrics")
    types = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    labels = {}
    for name, inner in re.findall(r"^([a-z0-9_:]+)\{(.*)\} \S+$", text, re.MULTILINE):
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', inner))
    for query in queries:
        names = re.findall(r"\b\w+:\w+", query)
        assert names, query
        for name in names:
            assert name in labels, f"{name} is not exported: {query}"
            family = re.sub(r"_(bucket|sum|count)$", "", name) if name not in types else name
            rated = re.search(rf"rate\({name}\{{", query) is not None
            assert rated == (types[family] in ("counter", "histogram")), f"{name} is a {types[family]}: {query}"
        used = set(re.findall(r'(\w+)=~?"', query))
        for grouped in re.findall(r"by \(([^)]*)\)", query):
            used |= set(re.findall(r"\w+", grouped))
        assert used <= set().union(*(labels[name] for name in names)) | OTHER_LABELS, query
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
