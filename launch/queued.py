"""Queued resources of the Cloud TPU API: one request for all slices, which waits until there is capacity.

Google no longer develops this API, and it does not have TPU7x and later generations (docs.cloud.google.com/tpu/docs/
queued-resources): launch/gke.py has them. Sources: the same page; tpu/docs/multislice-introduction; tpu/docs/spot,
request-using-dws-flex-start and reservations; tpu/docs/failure-recovery; google.cloud.tpu_v2.types. Never run against
the cloud.

Requires Python 3.10 and google-cloud-tpu.
"""

import dataclasses
import enum
import json
import uuid
from typing import Any

import cloud
from cloud import Clients, NotFound, TransientFailure
from shell import CommandFailed
from slices import Slice


class TpuState(enum.Enum):
    """What can be done with a TPU."""

    ABSENT = "absent"  # the API says that it does not exist, and does not list it
    PENDING = "pending"  # it is queued or being created, or the platform repairs or replaces a part of it
    READY = "ready"  # all of its VMs run
    LOST = "lost"  # it was preempted or stopped; it must be deleted
    FAILED = "failed"  # the cloud refused the request, which must be deleted
    DELETING = "deleting"  # its name can be reused when it is absent


@dataclasses.dataclass(frozen=True)
class State:
    """The state of a TPU with its description.

    Attributes:
      kind: The state.
      detail: The state as reported by the cloud, or a sentence.
      workers: Number of VMs if the TPU is ready, 0 if it is not known.
      is_gone: Whether a pending TPU has lost all of its slices.
      job: The directory of the job that its VMs run, "" for none.
      error: Why the request was refused, or None.
    """

    kind: TpuState
    detail: str
    workers: int = 0
    is_gone: bool = False
    job: str = ""
    error: CommandFailed | None = None


@dataclasses.dataclass(frozen=True)
class Request:
    """Options for creating a TPU. Without one of the four kinds of capacity, it is on demand.

    Attributes:
      slice: The shape of each slice.
      spot: Request spot capacity.
      reserved: Use any reservation of the project.
      reservation: Use the reservation with this name.
      flex_start: Wait for capacity that is granted for `max_run_seconds` and not preempted.
      max_run_seconds: Seconds after which the TPU is deleted, or 0.
      runtime_version: Software version of the VMs; None selects the generation's.
      network: Network of the VMs; None selects the default.
      subnetwork: Subnetwork of the VMs; None selects the default.
      internal_ips: Create VMs without external IP addresses.
      service_account: Service account of the VMs; None selects the project's default.
      valid_until_seconds: Seconds after which a request that is still queued expires, or 0.
    """

    slice: Slice
    spot: bool = False
    reserved: bool = False
    reservation: str | None = None
    flex_start: bool = False
    max_run_seconds: int = 0
    runtime_version: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    internal_ips: bool = False
    service_account: str | None = None
    valid_until_seconds: int = 0


# Kinds of the states of `QueuedResourceState.State` and of `Node.State`, by name. Other states of nodes are pending.
STATES = {
    **dict.fromkeys(("CREATING", "ACCEPTED", "PROVISIONING", "WAITING_FOR_RESOURCES"), TpuState.PENDING),
    **dict.fromkeys(("SUSPENDING", "SUSPENDED"), TpuState.LOST),
    "ACTIVE": TpuState.READY,
    "FAILED": TpuState.FAILED,
    "DELETING": TpuState.DELETING,
}
NODE_STATES = {
    "READY": TpuState.READY,
    **dict.fromkeys(("PREEMPTED", "TERMINATED", "STOPPING", "STOPPED", "DELETING", "not found"), TpuState.LOST),
}
STARTUP_SCRIPT = "launch/startup.sh"
JOB_METADATA = "t5x-like-job"  # launch/startup.sh reads it


class QueuedResource:
    """One queued resource, with one node per slice.

    Args:
      clients: Clients of the API; None for a dry run.
      name: Name of the queued resource.
      zone: Its zone.
      project: Its project; None selects the project of the credentials.
      num_slices: Number of slices.

    Attributes:
      full_name: Its name with the project and the zone.

    Raises:
      CommandFailed: The project is not known.
    """

    def __init__(self, clients: Clients | None, name: str, zone: str, project: str | None = None, num_slices: int = 1):
        self.clients, self.name, self.zone, self.num_slices = clients, name, zone, num_slices
        self.project = project or (clients.project if clients else "PROJECT")
        if not self.project:
            raise CommandFailed("the project is not known. Add --project, or set GOOGLE_CLOUD_PROJECT.")
        self.parent = f"projects/{self.project}/locations/{zone}"
        self.full_name = f"{self.parent}/queuedResources/{name}"
        self.nodes = [name] if num_slices == 1 else [f"{name}-{index}" for index in range(num_slices)]
        self._policy = {"retry": cloud.retry(), "timeout": cloud.TIMEOUT_SECONDS} if clients else {}

    def body(self, request: Request, startup_script: str, job: str) -> dict[str, Any]:
        """Returns the request as the JSON object that the API receives.

        Args:
          request: What to request.
          startup_script: Text of the script that each VM runs at each boot.
          job: The directory of the job that the script runs.
        """
        shape, generation = request.slice, request.slice.generation
        node: dict[str, Any] = {
            "runtimeVersion": request.runtime_version or generation.runtime_version,
            "networkConfig": {"enableExternalIps": not request.internal_ips},
            "metadata": {JOB_METADATA: job, "startup-script": startup_script},
        }
        if shape.is_default_shape:
            node["acceleratorType"] = shape.accelerator_type
        else:
            node["acceleratorConfig"] = {"type": generation.api_type, "topology": shape.topology}
        for key, value in (("network", request.network), ("subnetwork", request.subnetwork)):
            node["networkConfig"].update({key: value} if value else {})
        if request.service_account:
            node["serviceAccount"] = {"email": request.service_account}
        spec: dict[str, Any] = {"parent": self.parent, "node": node}
        if self.num_slices > 1:
            count = {"nodeCount": self.num_slices, "nodeIdPrefix": self.name}
            spec |= {"multiNodeParams" if request.flex_start else "multisliceParams": count}  # in v2alpha1 and in v2
        else:
            spec["nodeId"] = self.name
        body: dict[str, Any] = {"tpu": {"nodeSpec": [spec]}, **self._capacity(request)}
        if request.valid_until_seconds:
            body["queueingPolicy"] = {"validUntilDuration": f"{request.valid_until_seconds}s"}
        return body

    def _capacity(self, request: Request) -> dict[str, Any]:
        if request.spot:
            return {"spot": {}}
        if request.reservation or request.reserved:  # "-" is any reservation
            return {"reservationName": f"{self.parent}/reservations/{request.reservation or '-'}"}
        if request.flex_start:
            return {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": f"{request.max_run_seconds}s"}}
        return {}

    def create(self, request: Request, startup_script: str, job: str) -> None:
        """Requests the TPU, which then waits in the queue. It may be pending for a long time after this returns.

        Args:
          request: What to request.
          startup_script: Text of the script that each VM runs at each boot.
          job: The directory of the job that the script runs.

        Raises:
          AlreadyExists: There is a TPU of this name. It may be an older one that is being deleted.
          TransientFailure: The call failed, but a retry may succeed. The request may exist; `state` tells.
          CommandFailed: The call failed, and a retry would fail in the same way.
        """
        body = self.body(request, startup_script, job)
        with cloud.errors(f"{self.name} was not created"):
            if request.flex_start:
                self._create_flex_start(body)
                return
            from google.cloud import tpu_v2

            resource = tpu_v2.QueuedResource.from_json(json.dumps(body))
            # The ID makes the call idempotent, so that the policy may repeat it.
            call = tpu_v2.CreateQueuedResourceRequest(
                parent=self.parent,
                queued_resource_id=self.name,
                queued_resource=resource,
                request_id=str(uuid.uuid4()),
            )
            operation = self.clients.tpu.create_queued_resource(call, **self._policy).operation
        if not operation.name:
            raise TransientFailure(f"{self.name} was not created: invalid answer of the API, without an operation.")

    def _create_flex_start(self, body: dict[str, Any]) -> None:
        """Sends a request that only v2alpha1 has, whose fields google-cloud-tpu does not have."""
        from google.api_core import exceptions
        from google.auth.transport import requests

        session = requests.AuthorizedSession(self.clients.credentials)
        url = f"{self.clients.endpoint}/v2alpha1/{self.parent}/queuedResources?queuedResourceId={self.name}"
        response = session.post(url, json=body, timeout=cloud.TIMEOUT_SECONDS)
        if not response.ok:
            raise exceptions.from_http_response(response)

    def state(self) -> State:
        """Returns the state, which is ready if all VMs of all slices are.

        A resource that is active and has lost slices is pending: the platform recovers slices that are on demand,
        reserved or flex-start (tpu/docs/failure-recovery).

        Raises:
          TransientFailure: The state is not known, but a retry may succeed.
          CommandFailed: The state is not known: missing permission or project, or an invalid argument.
        """
        resource = self._get()
        if resource is None:
            return State(TpuState.ABSENT, "absent")
        name = resource.state.state.name
        if resource.name != self.full_name or name not in STATES:
            raise TransientFailure(f"{self.name}: invalid answer of the API, of {resource.name!r} in state {name}.")
        job = next((spec.node.metadata.get(JOB_METADATA, "") for spec in resource.tpu.node_spec), "")
        kind = STATES[name]
        if kind == TpuState.FAILED:
            error = self._refusal(resource.state.failed_data.error)
            return State(kind, name, job=job, error=error)
        if kind != TpuState.READY:
            return State(kind, name, job=job)
        return dataclasses.replace(self._nodes_state(), job=job)

    def _nodes_state(self) -> State:
        """Returns the state of the nodes of an active resource."""
        listed = {node.name.rpartition("/")[2]: node for node in self._list("list_nodes", "nodes")}
        names = {name: listed[name].state.name if name in listed else "not found" for name in self.nodes}
        kinds = {NODE_STATES.get(name, TpuState.PENDING) for name in names.values()}
        if kinds == {TpuState.READY}:
            counts = [len(listed[name].network_endpoints) for name in self.nodes]
            return State(TpuState.READY, "ready", sum(counts) if all(counts) else 0)
        detail = ", ".join(f"{name} is {text}" for name, text in names.items() if text != "READY")
        return State(TpuState.PENDING, detail, is_gone=kinds == {TpuState.LOST})

    def _get(self) -> Any:
        """Returns the resource, or None if the API says that it does not exist and a complete list does not have it."""
        try:
            with cloud.errors(f"the state of {self.name} is not known"):
                return self.clients.tpu.get_queued_resource(name=self.full_name, **self._policy)
        except NotFound:
            listed = self._list("list_queued_resources", "queued_resources")
            if any(resource.name == self.full_name for resource in listed):
                raise TransientFailure(f"{self.name}: not found, but listed.") from None
            return None
        except TransientFailure as error:
            from google.protobuf import json_format

            if not isinstance(error.__cause__, json_format.ParseError):
                raise
            return self._get_without_details()

    def _get_without_details(self) -> Any:
        """Returns the resource without the details of its error, whose type the client may not know."""
        with cloud.errors(f"the state of {self.name} is not known"):
            from google.auth.transport import requests
            from google.cloud import tpu_v2

            session = requests.AuthorizedSession(self.clients.credentials)
            body = session.get(f"{self.clients.endpoint}/v2/{self.full_name}", timeout=cloud.TIMEOUT_SECONDS).json()
            body["state"]["failedData"]["error"].pop("details")
            return tpu_v2.QueuedResource.from_json(json.dumps(body), ignore_unknown_fields=True)

    def _list(self, method: str, field: str) -> list[Any]:
        """Returns all resources or nodes of the zone."""
        with cloud.errors(f"the state of {self.name} is not known"):
            pages = list(getattr(self.clients.tpu, method)(parent=self.parent, **self._policy).pages)
        if missing := [place for page in pages for place in page.unreachable]:
            raise TransientFailure(f"the state of {self.name} is not known: unreachable: {', '.join(missing)}.")
        return [item for page in pages for item in getattr(page, field)]

    def _refusal(self, status: Any) -> CommandFailed:
        """Returns the cloud's reason for a refused request, with what to do about it."""
        from google.protobuf import json_format

        details = json_format.MessageToDict(status).get("details", [])
        message = (status.message or "no reason given").rstrip(".")
        return cloud.classify(f"{self.name} was refused: {message}.", status.code, details)

    def delete_words(self) -> list[str]:
        """Returns the call of gcloud by which a worker deletes the TPU, without the project, which the VM knows."""
        return [
            *("gcloud", "compute", "tpus", "queued-resources", "delete", self.name),
            *("--force", "--async", "--quiet", f"--zone={self.zone}"),
        ]

    def delete(self) -> bool:
        """Requests the deletion of the TPU with its VMs once, and returns whether it existed.

        The policy does not repeat the call, because it must not be deleted if it is back meanwhile.

        Raises:
          TransientFailure: The call failed. The TPU may already be deleted or being deleted; `state` tells.
          CommandFailed: The call failed, and a retry would fail in the same way.
        """
        try:
            with cloud.errors(f"{self.name} was not deleted"):
                from google.cloud import tpu_v2

                call = tpu_v2.DeleteQueuedResourceRequest(name=self.full_name, force=True, request_id=str(uuid.uuid4()))
                self.clients.tpu.delete_queued_resource(call, timeout=cloud.TIMEOUT_SECONDS)
        except NotFound:
            if self._get() is None:
                return False
            raise TransientFailure(
                f"{self.name} was not deleted: not found, but it exists. A retry may succeed."
            ) from None
        return True
