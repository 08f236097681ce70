"""Target `k8s`: manifests for `kubectl apply -f`.

A machine of its own is a Deployment; machines that form one engine, and those behind the router,
are a LeaderWorkerSet, whose pods have names that others can reach. Field names follow Kubernetes'
API and api/leaderworkerset/v1/leaderworkerset_types.go of kubernetes-sigs/lws.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ascend_recipes.export.compose import CACHE, CACHE_VARIABLES, GRACE_SECONDS, INSIDE
from ascend_recipes.export.documents import yaml_text
from ascend_recipes.export.layout import ExportFile, Layout, Node, Router
from ascend_recipes.export.places import LEADER_ADDRESS, POD_ADDRESS, hint
from ascend_recipes.export.router_sources import router_sources
from ascend_recipes.export.script import HEALTH_COMMAND, heading, node_program, router_program

Tree = dict[str, Any]

LWS_API = "leaderworkerset.x-k8s.io/v1"
ROUTER = "router"

_INDEX = "LWS_WORKER_INDEX"
_PERIOD_SECONDS = 10
_TIMEOUT_SECONDS = 15
_SCRIPTS = "scripts"


def workload_name(slug: str, role: str, instance: int) -> str:
    """Name of an instance's objects."""
    return f"{slug}-{role}-{instance}"


def kubernetes_files(layout: Layout) -> Iterator[ExportFile]:
    """One file with every object."""
    objects: list[Tree] = []
    for nodes in layout.instances:
        objects += _instance(layout, nodes)
    if layout.router is not None:
        objects += _router(layout, layout.router)
    objects.append(_service(layout))
    head = "\n".join([*heading(layout, "every object of the deployment"), *_needs(layout), "---"])
    yield ExportFile("manifests.yaml", f"{head}\n{yaml_text(*objects)}")


def _needs(layout: Layout) -> Iterator[str]:
    """What the cluster must have beforehand."""
    yield "# The cluster needs:"
    yield f"#   a device plugin that counts {layout.resource}"
    if any(_is_group(layout, nodes) for nodes in layout.instances):
        yield f"#   LeaderWorkerSet ({LWS_API})"
    if layout.secrets:
        yield f"#   the secret {_secret_name(layout)} with {', '.join(layout.secrets)}"
    if layout.weights_claim:
        contents = ", ".join(layout.weights) or "a cache of downloads"
        yield f"#   the claim {layout.weights_claim}: {contents}"


def _is_group(layout: Layout, nodes: Sequence[Node]) -> bool:
    return len(nodes) > 1 or layout.router is not None


def _instance(layout: Layout, nodes: Sequence[Node]) -> Iterator[Tree]:
    name = workload_name(layout.slug, nodes[0].role, nodes[0].instance)
    labels = _labels(layout, nodes[0].role, nodes[0].instance)
    inside = [node.in_container() for node in nodes]
    scripts = {f"node{node.local}.sh": node_program(layout, node) for node in inside}
    yield _config_map(name, labels, scripts)
    if not _is_group(layout, nodes):
        yield _deployment(layout, name, labels, _pod(layout, inside[0], name, "node0.sh"))
        return
    script = f"node$({_INDEX}).sh"
    leader, workers = (_template(layout, node, name, script, labels) for node in _ends(inside))
    group: Tree = {"size": len(nodes), "restartPolicy": "RecreateGroupOnPodRestart"}
    if leader != workers:
        group["leaderTemplate"] = leader
    group["workerTemplate"] = workers
    yield {
        "apiVersion": LWS_API,
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            # Leaders are ready when their workers have joined: these may not wait for them.
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": group,
        },
    }


def _ends(nodes: Sequence[Node]) -> tuple[Node, Node]:
    """The first machine, and one that stands for all others."""
    return nodes[0], nodes[-1]


def _template(
    layout: Layout, node: Node, name: str, script: str, labels: Mapping[str, str]
) -> Tree:
    return {
        "metadata": {"labels": dict(labels), "annotations": _annotations(layout)},
        "spec": _pod(layout, node, name, script),
    }


def _pod(layout: Layout, node: Node, scripts: str, script: str) -> Tree:
    volumes = dict(_volumes(layout))
    container: Tree = {
        "name": node.role,
        "image": layout.image,
        "command": ["bash", f"{INSIDE}/{script}"],
        "env": _environment(layout, node.variables),
        "resources": {
            kind: {layout.resource: str(len(node.dies))} for kind in ("requests", "limits")
        },
    }
    if node.listening:
        container["ports"] = [{"containerPort": server.port} for server in node.listening]
        container |= _probes(layout, [server.port for server in node.listening if server.port])
    mounts = [{"name": name, **mount} for name, (mount, _) in volumes.items()]
    container["volumeMounts"] = [{"name": _SCRIPTS, "mountPath": INSIDE}, *mounts]
    listed = [{"name": name, **source} for name, (_, source) in volumes.items()]
    pod: Tree = {"terminationGracePeriodSeconds": GRACE_SECONDS}
    if len(layout.nodes) > 1:
        # The interface for collectives is one of the machine's.
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    pod["containers"] = [container]
    pod["volumes"] = [{"name": _SCRIPTS, "configMap": {"name": scripts}}, *listed]
    return pod


def _volumes(layout: Layout) -> Iterator[tuple[str, tuple[Tree, Tree]]]:
    """Name, mount and source of every volume but the scripts."""
    size = f"{layout.shared_memory_gib}Gi"
    memory = {"emptyDir": {"medium": "Memory", "sizeLimit": size}}
    yield "shared-memory", ({"mountPath": "/dev/shm"}, memory)
    paths = [*layout.container.pod_mounts]
    if len(layout.nodes) > 1:
        paths += layout.container.network_mounts
    for number, path in enumerate(paths):
        yield f"driver-{number}", (_read_only(path), {"hostPath": {"path": path}})
    claim = layout.weights_claim
    for number, folder in enumerate(layout.weights):
        source: Tree = {"hostPath": {"path": folder, "type": "Directory"}}
        if claim and number == 0:
            source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        yield f"weights-{number}", (_read_only(folder), source)
    if layout.cache_folder:
        source = {"hostPath": {"path": layout.cache_folder, "type": "DirectoryOrCreate"}}
        if claim:
            source = {"persistentVolumeClaim": {"claimName": claim}}
        yield "cache", ({"mountPath": CACHE}, source)


def _read_only(path: str) -> Tree:
    return {"mountPath": path, "readOnly": True}


def _environment(layout: Layout, variables: Sequence[str]) -> list[Tree]:
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    env: list[Tree] = [{"name": POD_ADDRESS.name, "valueFrom": address}]
    own = (POD_ADDRESS.name, LEADER_ADDRESS.name)
    for name in variables:
        if name not in own and hint(name):
            env.append({"name": name, "value": name})
    for name in layout.secrets:
        reference = {"name": _secret_name(layout), "key": name}
        env.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    if layout.cache_folder:
        env += [{"name": name, "value": value} for name, value in CACHE_VARIABLES.items()]
    return env


def _secret_name(layout: Layout) -> str:
    return f"{layout.slug}-secrets"


def _probes(layout: Layout, ports: Sequence[int]) -> Tree:
    """A pod is ready when all its servers answer; the first answer takes as long as weights do."""
    if len(ports) == 1:
        test: Tree = {"httpGet": {"path": "/health", "port": ports[0]}}
    else:
        urls = " ".join(f"http://${{{POD_ADDRESS.name}}}:{port}/health" for port in ports)
        shell = f'exec python3 -c "$0" 1 {urls}'
        test = {"exec": {"command": ["bash", "-c", shell, HEALTH_COMMAND[-1]]}}
    common = {**test, "periodSeconds": _PERIOD_SECONDS, "timeoutSeconds": _TIMEOUT_SECONDS}
    tries = -(-layout.ready_seconds // _PERIOD_SECONDS)
    return {
        "startupProbe": {**common, "failureThreshold": tries},
        "readinessProbe": {**common, "failureThreshold": 3},
        "livenessProbe": {**common, "failureThreshold": 6},
    }


def _router(layout: Layout, router: Router) -> Iterator[Tree]:
    name, labels = f"{layout.slug}-{ROUTER}", _labels(layout, ROUTER, 0)
    files = {"router.sh": router_program(layout, router)}
    files |= {item.name: item.text for item in router_sources(router)}
    keys = {path: path.replace("/", "-") for path in files}
    yield _config_map(name, labels, {keys[path]: text for path, text in files.items()})
    items = [{"key": key, "path": path} for path, key in keys.items()]
    container: Tree = {
        "name": ROUTER,
        "image": layout.image,
        "command": ["bash", f"{INSIDE}/router.sh"],
        "env": _environment(layout, router.variables),
        "ports": [{"containerPort": router.port}],
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": router.port},
            "periodSeconds": _PERIOD_SECONDS,
        },
        "volumeMounts": [{"name": _SCRIPTS, "mountPath": INSIDE}],
    }
    pod = {
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [container],
        "volumes": [{"name": _SCRIPTS, "configMap": {"name": name, "items": items}}],
    }
    yield _deployment(layout, name, labels, pod)


def _deployment(layout: Layout, name: str, labels: Mapping[str, str], pod: Tree) -> Tree:
    template = {
        "metadata": {"labels": dict(labels), "annotations": _annotations(layout)},
        "spec": pod,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {
            "replicas": 1,
            # A second copy would wait for dies that the first one holds.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": dict(labels)},
            "template": template,
        },
    }


def _service(layout: Layout) -> Tree:
    """Where clients talk to: the router, else the leaders, which alone are ready on the port."""
    role = ROUTER if layout.router is not None else layout.groups[0]
    selector = {"app.kubernetes.io/name": layout.slug, "app.kubernetes.io/component": role}
    if layout.router is None and any(len(nodes) > 1 for nodes in layout.instances):
        selector["leaderworkerset.sigs.k8s.io/worker-index"] = "0"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": layout.slug, "labels": {"app.kubernetes.io/name": layout.slug}},
        "spec": {
            "selector": selector,
            "ports": [{"name": "http", "port": layout.port, "targetPort": layout.port}],
        },
    }


def _config_map(name: str, labels: Mapping[str, str], scripts: Mapping[str, str]) -> Tree:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": dict(labels)},
        "data": dict(scripts),
    }


def _labels(layout: Layout, role: str, instance: int) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": layout.slug,
        "app.kubernetes.io/component": role,
        "app.kubernetes.io/instance": workload_name(layout.slug, role, instance),
    }


def _annotations(layout: Layout) -> dict[str, str]:
    """Pods are made anew when the plan changes."""
    return {"ascend-recipes/digest": layout.digest}
