"""The generations of TPUs: shapes of slices, sizes of VMs, and names in the APIs of Google Cloud.

This table is the only place in launch/ where generations differ, except launch/host_settings.sh, which runs on the VM
and detects the chips there.

Sources, all below docs.cloud.google.com:
  tpu/docs, pages "v4", "v5e", "v5p", "v6e" and "tpu7x": sizes; "TPU regions and zones"; "TPU software versions".
  compute/docs/tpus/tpu-machines: machine types.
  kubernetes-engine/docs/concepts/plan-tpus: machine types, sizes of VMs and node labels of GKE. AI-Hypercomputer/xpk:
    workload policies of tpu7x in GKE.

Requires Python 3.10 and only its standard library.
"""

import dataclasses

SHAPES_2D = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))  # all slices of v5e and v6e
# Slices of v4, v5p and tpu7x with fewer than 64 chips. Larger slices consist of cubes of 4x4x4 chips.
SMALL_SHAPES_3D = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
CHIPS_PER_VM = 4  # in a slice of several VMs


@dataclasses.dataclass(frozen=True)
class Generation:
    """A generation of TPUs.

    Attributes:
      name: The name in `t5x_like plan`, such as the `v5e` of `v5e:4x4`.
      type_prefix: The name in the TPU API, such as the `v5litepod` of `v5litepod-16`.
      units_per_chip: Units per chip in an accelerator type: 2 if its number counts cores, 1 if it counts chips.
      shapes: Sides of the slices, in chips. If they have three sides, larger slices consist of cubes of 4x4x4 chips.
      max_chips: Maximum number of chips in a slice.
      vm_chips: Numbers of chips per VM. A slice of several VMs has VMs of `CHIPS_PER_VM`.
      runtime_version: Software version of the VM in the Cloud TPU API, without a framework; None if that API does not
        have the generation.
      api_type: The name in `AcceleratorConfig.Type` of the Cloud TPU API, for shapes other than the default.
      machine_type: Machine type in GKE, where `{chips}` stands for the number of chips per VM.
      gke_accelerator: Value of the node label `cloud.google.com/gke-tpu-accelerator`.
      gke_workload_policy: Whether a node pool of several VMs gets its topology from a workload policy.
      zones: Zones documented to offer this generation. A project may not have access to all of them.
    """

    name: str
    type_prefix: str
    units_per_chip: int
    shapes: tuple[tuple[int, ...], ...]
    max_chips: int
    vm_chips: tuple[int, ...]
    machine_type: str
    gke_accelerator: str
    zones: tuple[str, ...]
    runtime_version: str | None = None
    api_type: str | None = None
    gke_workload_policy: bool = False

    @property
    def dimensions(self) -> int:
        """Number of dimensions of the torus."""
        return len(self.shapes[0])


GENERATIONS = {
    generation.name: generation
    for generation in (
        Generation(
            name="v4",
            type_prefix="v4",
            units_per_chip=2,
            shapes=SMALL_SHAPES_3D,
            max_chips=4096,
            vm_chips=(4,),
            runtime_version="tpu-ubuntu2204-base",
            api_type="V4",
            machine_type="ct4p-hightpu-{chips}t",
            gke_accelerator="tpu-v4-podslice",
            zones=("us-central2-b",),
        ),
        Generation(
            name="v5e",
            type_prefix="v5litepod",
            units_per_chip=1,
            shapes=SHAPES_2D,
            max_chips=256,
            vm_chips=(1, 4, 8),
            runtime_version="v2-alpha-tpuv5-lite",
            api_type="V5LITE_POD",
            machine_type="ct5lp-hightpu-{chips}t",
            gke_accelerator="tpu-v5-lite-podslice",
            zones=(
                "europe-west4-b",
                "us-central1-a",
                "us-east5-a",
                "us-east5-b",
                "us-east5-c",
                "us-south1-a",
                "us-west1-c",
                "us-west4-a",
                "us-west4-b",
            ),
        ),
        Generation(
            name="v5p",
            type_prefix="v5p",
            units_per_chip=2,
            shapes=SMALL_SHAPES_3D,
            max_chips=6144,
            vm_chips=(4,),
            runtime_version="v2-alpha-tpuv5",
            api_type="V5P",
            machine_type="ct5p-hightpu-{chips}t",
            gke_accelerator="tpu-v5p-slice",
            zones=("europe-west4-b", "us-central1-a", "us-east5-a", "us-east5-b", "us-east5-c", "us-south1-a"),
        ),
        Generation(
            name="v6e",
            type_prefix="v6e",
            units_per_chip=1,
            shapes=SHAPES_2D,
            max_chips=256,
            vm_chips=(1, 4, 8),
            runtime_version="v2-alpha-tpuv6e",
            api_type="V6E",
            machine_type="ct6e-standard-{chips}t",
            gke_accelerator="tpu-v6e-slice",
            zones=(
                "asia-northeast1-b",
                "europe-west4-a",
                "southamerica-west1-a",
                "us-central1-b",
                "us-east1-d",
                "us-east4-a",
                "us-east4-b",
                "us-east5-a",
                "us-east5-b",
                "us-east5-c",
                "us-west1-c",
            ),
        ),
        Generation(
            name="tpu7x",
            type_prefix="tpu7x",
            units_per_chip=2,
            shapes=SMALL_SHAPES_3D,
            max_chips=9216,
            vm_chips=(4,),
            machine_type="tpu7x-standard-{chips}t",
            gke_accelerator="tpu7x",
            gke_workload_policy=True,
            zones=("us-central1-c",),
        ),
    )
}
