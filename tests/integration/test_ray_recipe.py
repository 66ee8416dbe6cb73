"""The recipe of docs/guide/tune-your-cluster.md by which hosts become a Ray cluster, on two emulated hosts."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from chorale.runners.fabric.fabric import NamespaceHolder
from tests.docs.pages import DOCS, PAGES
from tests.integration.faults.hosts import BRIDGE, OBJECT_STORE_BYTES, Host

RECIPE = re.compile(r"^```sh\n(export CHORALE_HOME=.*?)^```", re.DOTALL | re.MULTILINE)
CAMPAIGN = """\
name: recipe
topology: ring:4
collective: allreduce
sizes: [64KiB]
runner: {kind: simulated}
search: {methods: [ring]}
budget: {trials: 1}
"""
SMALL = f"--num-cpus=2 --object-store-memory={OBJECT_STORE_BYTES} --disable-usage-stats"


def test_every_page_that_starts_ray_says_with_which_token():
    starting = [page for page in PAGES if "ray start --head" in (DOCS / page).read_text()]
    assert "guide/tune-your-cluster.md" in starting
    for page in starting:
        assert "RAY_AUTH_MODE=token" in (DOCS / page).read_text(), page


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="emulated hosts need root")
def test_hosts_of_the_recipe_are_a_cluster_that_campaigns_join(tmp_path):
    (recipe,) = RECIPE.findall((DOCS / "guide/tune-your-cluster.md").read_text())
    shared, home = tmp_path / "shared", tmp_path / "home"
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text("0" * 64)  # of an earlier cluster
    (tmp_path / "campaign.yaml").write_text(CAMPAIGN)
    holder, hosts = NamespaceHolder("recipe"), list[Host]()
    try:
        holder.run(BRIDGE)
        hosts += [Host(number, holder) for number in range(2)]
        recipe = recipe.replace("/shared/", f"{shared}/").replace("HEAD", hosts[0].address)
        common, (head, other) = recipe.partition("ray start")[0], re.findall(r"^ray start.*$", recipe, re.MULTILINE)
        for host, start in zip(hosts, (head, other), strict=True):
            words = f"{start.partition('  #')[0]} --node-ip-address={host.address} {SMALL}"
            of_head = " --include-dashboard=false" if start is head else ""
            _run(host, home, common + words + of_head)
        _run(hosts[0], home, f"{common}python -m chorale.runners.ray.wait_for_nodes {hosts[0].address}:6379 2")
        tune = f"RAY_ADDRESS={hosts[0].address}:6379 chorale tune {tmp_path}/campaign.yaml"
        assert "ring" in _run(hosts[1], home, common + tune)
    finally:
        for host in hosts:
            host.close()
        holder.close()


def _run(host: Host, home: Path, script: str) -> str:
    folder = Path(sys.executable).parent
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "CHORALE_"))}
    slow = {"RAY_raylet_start_wait_time_s": "300", "RAY_memory_monitor_refresh_ms": "0"}
    variables = {**kept, **slow, "HOME": str(home), "PATH": f"{folder}:{os.environ['PATH']}"}
    with tempfile.TemporaryFile("w+") as said:  # daemons keep it open
        command = [*host.prefix, "bash", "-euc", script]
        done = subprocess.run(command, env=variables, stdout=said, stderr=said, timeout=400, check=False)
        said.seek(0)
        text = said.read()
    assert done.returncode == 0, f"{script}\n{text}"
    return text
