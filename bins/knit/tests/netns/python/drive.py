"""Drives both packages of the agent's API with code generated from the .proto files.

Usage: drive.py GENERATED SOCKET

GENERATED is a folder with what grpc_tools.protoc made of api/. Namespace `default` has a network `blue`, with addresses
of 172.31.7.0/24. Every step says what it saw; the first surprise ends it.
"""

import os
import sys
import threading

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

sys.path.insert(0, sys.argv[1])
from kni import kni_pb2, kni_pb2_grpc  # noqa: E402
from knit.v1 import knit_pb2, knit_pb2_grpc, node_pb2, pod_pb2, watch_pb2  # noqa: E402

DEADLINE = 20


def check(seen, what):
    if not seen:
        raise AssertionError(what)


def same(seen, expected, what):
    check(seen == expected, f"{what}: {seen!r}, not {expected!r}")


def refused(call, code, reason):
    """Asserts that the call fails with this code and an error detail."""
    try:
        call()
    except grpc.RpcError as error:
        same(error.code(), code, error.details())
        (packed,) = rpc_status.from_call(error).details
        detail = knit_pb2.ErrorDetail()
        check(packed.Unpack(detail), f"no ErrorDetail: {packed.type_url}")
        same(detail.reason, reason, error.details())
        check(detail.call_id, "an error has the id of its call")
        same(dict(error.trailing_metadata()).get("knit-call-id"), detail.call_id, "the id in the metadata")
        return detail
    raise AssertionError(f"{reason} was expected")


def tools(channel):
    """Health and reflection services."""
    health = health_pb2_grpc.HealthStub(channel)
    for service in ["", "kni.KNI", "knit.v1.Agent"]:
        answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE)
        same(answer.status, health_pb2.HealthCheckResponse.SERVING, f"health of {service!r}")
    reflection = ProtoReflectionDescriptorDatabase(channel)
    services = set(reflection.get_services())
    check({"kni.KNI", "knit.v1.Agent", "grpc.health.v1.Health"} <= services, services)
    file = reflection.FindFileContainingSymbol("knit.v1.ErrorDetail")
    same(file.package, "knit.v1", "reflection finds messages")
    print("tools: health and reflection work")


def compatible(channel, names):
    """The life cycle of a pod with package kni, with one generation of its method names."""
    stub = kni_pb2_grpc.KNIStub(channel)
    create, attach, detach, delete = (getattr(stub, name) for name in names)
    pod = {"name": "py-kni", "namespace": "default"}
    uid = "uid-" + names[0]
    stub.SetupNodeNetwork(kni_pb2.SetupNodeNetworkRequest(), timeout=DEADLINE)
    networks = stub.QueryNodeNetworks(kni_pb2.QueryNodeNetworksRequest(), timeout=DEADLINE).networks
    ready = [network.name for network in networks if network.ready]
    check("cluster-network" in ready, f"ready networks: {ready}")

    path = create(kni_pb2.CreateNetworkRequest(uid=uid, **pod), timeout=DEADLINE).netns_path
    check(os.path.exists(path), f"{path} was made")
    again = create(kni_pb2.CreateNetworkRequest(uid=uid, **pod), timeout=DEADLINE).netns_path
    same(again, path, "made again")

    request = kni_pb2.AttachInterfaceRequest(
        id=uid,
        isolation=kni_pb2.Isolation(path=path, type="netns"),
        dns_config=kni_pb2.DNSConfig(servers=["10.96.0.10"], searches=["default.svc"]),
        port_mappings=[
            kni_pb2.PortMapping(protocol=kni_pb2.UDP, container_port=53, host_port=30053),
            # As the kubelet lists a port without a host port.
            kni_pb2.PortMapping(protocol=kni_pb2.TCP, container_port=80, host_port=0),
        ],
        annotations={"kubernetes.io/ingress-bandwidth": "10M"},
        **pod,
    )
    first = attach(request, timeout=DEADLINE)
    same(list(first.ipconfigs), ["eth0"], "the first interface")
    families = sorted(":" in ip for ip in first.ipconfigs["eth0"].ip)
    same(families, [False, True], "one address of each family")
    check(first.ipconfigs["eth0"].mac, "a hardware address")
    same(attach(request, timeout=DEADLINE), first, "the same attach again")

    by_id = kni_pb2.QueryPodNetworkRequest(id=uid)
    seen = stub.QueryPodNetwork(by_id, timeout=DEADLINE).ipconfigs["eth0"].ip
    same(list(seen), list(first.ipconfigs["eth0"].ip), "the query")
    unknown = stub.QueryPodNetwork(kni_pb2.QueryPodNetworkRequest(id="nobody"), timeout=DEADLINE)
    same(len(unknown.ipconfigs), 0, "an unknown pod")

    for _ in range(2):
        detach(kni_pb2.DetachInterfaceRequest(id=uid), timeout=DEADLINE)
    same(len(stub.QueryPodNetwork(by_id, timeout=DEADLINE).ipconfigs), 0, "after the detach")
    for _ in range(2):
        delete(kni_pb2.DeleteNetworkRequest(id=uid, **pod), timeout=DEADLINE)
    check(not os.path.exists(path), f"{path} is gone")
    bad = kni_pb2.AttachInterfaceRequest(id="a/../b", isolation=kni_pb2.Isolation(path="/etc/hosts"), **pod)
    refused(lambda: attach(bad, timeout=DEADLINE), grpc.StatusCode.INVALID_ARGUMENT, "InvalidValue")
    print(f"kni: {', '.join(names)} succeeded")


def watched(stub, events, synced, after=None):
    """Collects changes of pods in the background, until the stream is cancelled."""
    request = watch_pb2.WatchRequest(subjects=[watch_pb2.SUBJECT_POD])
    if after is not None:
        request.after.CopyFrom(after)
    stream = stub.Watch(request)

    def read():
        try:
            for event in stream:
                events.append(event)
                if after is not None or event.change == watch_pb2.CHANGE_SYNCED:
                    synced.set()
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.CANCELLED:
                events.append(error)
            synced.set()

    threading.Thread(target=read, daemon=True).start()
    return stream


def own(channel):
    """The life cycle of a pod with package knit.v1."""
    stub = knit_pb2_grpc.AgentStub(channel)
    node = stub.GetNode(knit_pb2.GetNodeRequest(), timeout=DEADLINE).node
    check(node.version and node.boot_id, node)
    events, synced = [], threading.Event()
    stream = watched(stub, events, synced)
    check(synced.wait(DEADLINE), "the watch never said that it has everything")

    spec = pod_pb2.SandboxSpec(id="py-1", name="py", namespace="default", labels={"app": "py"})
    made = stub.CreateSandbox(knit_pb2.CreateSandboxRequest(sandbox=spec), timeout=DEADLINE)
    check(made.created and made.pod.netns_made and os.path.exists(made.pod.netns_path), made)
    known = pod_pb2.SandboxSpec(id="py-1")

    dry = knit_pb2.AttachRequest(sandbox=known, dry_run=True)
    answer, call = stub.Attach.with_call(dry, timeout=DEADLINE, metadata=[("knit-call-id", "from-python")])
    check(answer.plan.steps > 0 and answer.plan.text and answer.plan.json.startswith(("{", "[")), answer.plan)
    same(answer.call_id, "from-python", "the call's id")
    headers = dict(call.initial_metadata()) | dict(call.trailing_metadata())
    same(headers.get("knit-call-id"), "from-python", "the call's id in the metadata")

    attached = stub.Attach(knit_pb2.AttachRequest(sandbox=known), timeout=DEADLINE)
    same((list(attached.interfaces), attached.changed), (["eth0"], True), "the first attach")
    families = {address.family for address in attached.pod.interfaces[0].addresses}
    same(families, {node_pb2.FAMILY_IPV4, node_pb2.FAMILY_IPV6}, "families")
    check(stub.Attach(knit_pb2.AttachRequest(sandbox=known), timeout=DEADLINE).changed is False, "idempotent")
    strict = knit_pb2.AttachRequest(sandbox=known, fail_if_present=True)
    refused(lambda: stub.Attach(strict, timeout=DEADLINE), grpc.StatusCode.ALREADY_EXISTS, "AlreadyPresent")

    hot = pod_pb2.InterfaceSpec(name="hot1", network="blue", mtu=1400)
    two = stub.Attach(knit_pb2.AttachRequest(sandbox=known, interfaces=[hot]), timeout=DEADLINE)
    same([interface.name for interface in two.pod.interfaces], ["eth0", "hot1"], "hot attach")
    pod = stub.GetPod(knit_pb2.GetPodRequest(pod=pod_pb2.PodRef(name="py")), timeout=DEADLINE).pod
    one = next(interface for interface in pod.interfaces if interface.name == "hot1")
    same((one.mtu, one.addresses[0].address.rsplit(".", 1)[0]), (1400, "172.31.7"), "the hot interface")
    same(one.provenance.dialect, "kni", "who asked")
    listed = stub.ListPods(knit_pb2.ListPodsRequest(labels={"app": "py"}), timeout=DEADLINE)
    same([pod.id for pod in listed.pods], ["py-1"], "the list")

    networks = stub.ListNetworks(knit_pb2.ListNetworksRequest(), timeout=DEADLINE).networks
    check(any(network.default and network.readiness.ready for network in networks), networks)
    ready = stub.GetReadiness(knit_pb2.GetReadinessRequest(), timeout=DEADLINE)
    check(ready.node.ready and ready.new_pods.ready, ready)
    room = stub.GetCapacity(knit_pb2.GetCapacityRequest(network="cluster-network"), timeout=DEADLINE)
    check(not room.no_more_pods and all(one.used >= 1 for one in room.networks), room)

    empty = knit_pb2.CollectGarbageRequest(living=knit_pb2.Living())
    refused(lambda: stub.CollectGarbage(empty, timeout=DEADLINE), grpc.StatusCode.INVALID_ARGUMENT, "InvalidValue")
    dead = knit_pb2.CollectGarbageRequest(living=knit_pb2.Living(none=True), dry_run=True)
    would = stub.CollectGarbage(dead, timeout=DEADLINE).collected
    same([one.sandbox_id for one in would], ["py-1"], "what would be collected")

    gone = stub.Detach(knit_pb2.DetachRequest(pod=pod_pb2.PodRef(id="py-1"), interfaces=["hot1"]), timeout=DEADLINE)
    same(list(gone.detached), ["hot1"], "hot detach")
    nothing = knit_pb2.GetPodRequest(pod=pod_pb2.PodRef(id="nobody"))
    refused(lambda: stub.GetPod(nothing, timeout=DEADLINE), grpc.StatusCode.NOT_FOUND, "NotFound")
    stub.DeleteSandbox(knit_pb2.DeleteSandboxRequest(pod=pod_pb2.PodRef(id="py-1")), timeout=DEADLINE)
    check(not os.path.exists(pod.netns_path), f"{pod.netns_path} is gone")

    seen_deleted(events, "py-1")
    stream.cancel()
    resumed(stub, events)
    lines = list(stub.Logs(watch_pb2.LogsRequest(call_id=attached.call_id, level="debug"), timeout=DEADLINE))
    check(lines, "the attach is in the log")
    print("knit.v1: create, attach, query, watch, collect, detach, delete succeeded")


def seen_deleted(events, sandbox):
    """Waits until the watch reports the deletion of the sandbox."""
    deadline = threading.Event()
    for _ in range(100):
        ends = [event for event in events if getattr(event, "change", 0) == watch_pb2.CHANGE_DELETED]
        if any(event.pod.id == sandbox for event in ends):
            return
        deadline.wait(0.1)
    raise AssertionError(f"no deletion of {sandbox} among {events}")


def resumed(stub, events):
    """A resumed watch has the changes since its position, then a sync event."""
    middle = next(event for event in events if event.HasField("pod") and event.pod.id == "py-1")
    later, started = [], threading.Event()
    stream = watched(stub, later, started, after=middle.position)
    seen_deleted(later, "py-1")
    for _ in range(100):
        if any(event.change == watch_pb2.CHANGE_BOOKMARK for event in later):
            break
        started.wait(0.1)
    stream.cancel()
    same(later[-1].change, watch_pb2.CHANGE_BOOKMARK, "the end of what was missed")
    check(later[-1].position.sequence > middle.position.sequence, later)

    foreign = watch_pb2.WatchRequest(after=node_pb2.Position(epoch="another", sequence=1))
    refused(lambda: next(stub.Watch(foreign)), grpc.StatusCode.OUT_OF_RANGE, "PositionGone")


def main():
    # Newer libraries send the path of the socket as the HTTP/2 authority, which servers reject: set `localhost`.
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel("unix:" + sys.argv[2], options=options) as channel:
        tools(channel)
        compatible(channel, ["CreateNetwork", "AttachNetwork", "DetachNetwork", "DeleteNetwork"])
        compatible(channel, ["CreateIsolationDomain", "AttachInterface", "DetachInterface", "DeleteIsolationDomain"])
        own(channel)
    print("all done")


main()
