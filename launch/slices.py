"""TPU slices as data, and the checks that are made before anything is asked of a cloud.

Sources: cloud.google.com/tpu/docs, the pages "v4", "v5e", "v5p", "v6e" (configurations), "TPU regions and zones" and
"TPU software versions"; cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus for node labels.

Plain Python 3.10 and its standard library: this runs on laptops and VMs where nothing is installed.
"""

import dataclasses
import difflib
import itertools
import math
import re

FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))  # every slice of v5e and of v6e
BELOW_A_CUBE = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))  # of v4 and v5p; larger ones are made of cubes of 4x4x4
CUBE_SIDE = 4
CHIPS_PER_VM = 4  # of a slice of several VMs; a slice of up to 8 chips in two dimensions is one VM
LARGEST_VM = 8
PLANNED = "`t5x_like plan` takes more chips and shapes than can be launched"


class LaunchError(ValueError):
    """What was asked for cannot be launched; the message says what to write instead."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """A generation of TPUs.

    Attributes:
      name: as `t5x_like plan` writes it, the `v5e` of `v5e:4x4`.
      type_prefix: as the TPU API writes it, the `v5litepod` of `v5litepod-16`.
      units_per_chip: what the number of an accelerator type counts: 2 where it counts cores, 1 where it counts chips.
      dimensions: of the torus.
      most_chips: in one slice.
      runtime_version: the VM's software, without a framework.
      gke_accelerator: value of the node label `cloud.google.com/gke-tpu-accelerator`.
      zones: that are documented to have it; not every project may use each.
    """

    name: str
    type_prefix: str
    units_per_chip: int
    dimensions: int
    most_chips: int
    runtime_version: str
    gke_accelerator: str
    zones: tuple[str, ...]


GENERATIONS = {
    generation.name: generation
    for generation in (
        Generation(
            name="v4",
            type_prefix="v4",
            units_per_chip=2,
            dimensions=3,
            most_chips=4096,
            runtime_version="tpu-ubuntu2204-base",
            gke_accelerator="tpu-v4-podslice",
            zones=("us-central2-b",),
        ),
        Generation(
            name="v5e",
            type_prefix="v5litepod",
            units_per_chip=1,
            dimensions=2,
            most_chips=256,
            runtime_version="v2-alpha-tpuv5-lite",
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
            dimensions=3,
            most_chips=6144,
            runtime_version="v2-alpha-tpuv5",
            gke_accelerator="tpu-v5p-slice",
            zones=("europe-west4-b", "us-central1-a", "us-east5-a", "us-east5-b", "us-east5-c", "us-south1-a"),
        ),
        Generation(
            name="v6e",
            type_prefix="v6e",
            units_per_chip=1,
            dimensions=2,
            most_chips=256,
            runtime_version="v2-alpha-tpuv6e",
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
    )
}


@dataclasses.dataclass(frozen=True)
class Slice:
    """One slice: a generation and the sides of its torus, in chips."""

    generation: Generation
    sides: tuple[int, ...]

    @property
    def chips(self) -> int:
        return math.prod(self.sides)

    @property
    def chips_per_vm(self) -> int:
        return min(self.chips, LARGEST_VM if self.chips == LARGEST_VM and len(self.sides) == 2 else CHIPS_PER_VM)

    @property
    def vms(self) -> int:
        """Workers, in the words of gcloud."""
        return self.chips // self.chips_per_vm

    @property
    def topology(self) -> str:
        return "x".join(map(str, self.sides))

    @property
    def accelerator_type(self) -> str:
        """What the TPU API calls a slice of so many chips; it says nothing about the sides."""
        return f"{self.generation.type_prefix}-{self.chips * self.generation.units_per_chip}"

    @property
    def is_default_shape(self) -> bool:
        """Whether the accelerator type alone asks for these sides."""
        return sorted(self.sides) == sorted(_default_sides(self.generation, self.chips))

    def __str__(self) -> str:
        plural = "s" if self.vms > 1 else ""
        shape = f"{self.generation.name}:{self.topology}"
        return f"{shape} ({self.accelerator_type}, {self.chips} chips on {self.vms} VM{plural})"


def parse_slice(accelerator_type: str | None, topology: str | None) -> Slice:
    """The slice that `--type` and `--topology` mean; either is enough, and both must agree.

    Args:
      accelerator_type: `v5litepod-16`, `v5e-16`, `v4-256`; the number counts chips of v5e and v6e, cores of v4 and v5p.
      topology: `v5e:4x4` as `t5x_like plan` takes it, or `4x4` beside an accelerator type.

    Raises:
      LaunchError: there is no such slice, or the two disagree.
    """
    if accelerator_type is None and topology is None:
        raise LaunchError("name the slice: --topology=v5e:4x4 (as for `t5x_like plan`) or --type=v5litepod-16")
    named, sides_text = None, topology
    if topology is not None and ":" in topology:
        prefix, _, sides_text = topology.partition(":")
        named = _generation(prefix, f"--topology={topology}")
    if accelerator_type is None:
        if named is None:
            raise LaunchError(
                f"--topology={topology} names no generation: write --topology=v5e:{topology}, or give --type"
            )
        return Slice(named, _sides(named, sides_text, f"--topology={topology}"))
    generation, chips = _parse_type(accelerator_type)
    if named is not None and named is not generation:
        raise LaunchError(f"--type={accelerator_type} is {generation.name} and --topology={topology} is {named.name}")
    if sides_text is None:
        return Slice(generation, _default_sides(generation, chips))
    sides = _sides(generation, sides_text, f"--topology={topology}")
    if math.prod(sides) != chips:
        fitting = Slice(generation, sides).accelerator_type
        raise LaunchError(
            f"--type={accelerator_type} has {chips} chips and --topology={topology} has {math.prod(sides)}: "
            f"that topology is {fitting}, and {accelerator_type} is "
            f"{Slice(generation, _default_sides(generation, chips)).topology}"
        )
    return Slice(generation, sides)


def _parse_type(text: str) -> tuple[Generation, int]:
    match = re.fullmatch(r"(?P<name>[a-z0-9]+)-(?P<units>[1-9][0-9]*)", text)
    if match is None:
        raise LaunchError(
            f"--type={text}: write a generation and a size, such as v5litepod-16, v6e-8, v4-32 or v5p-128"
        )
    generation, units = _generation(match["name"], f"--type={text}"), int(match["units"])
    chips, rest = divmod(units, generation.units_per_chip)
    if rest or not _default_sides(generation, chips):
        sizes = [Slice(generation, sides).accelerator_type for sides in _some_shapes(generation)]
        counted = "cores, two a chip" if generation.units_per_chip == 2 else "chips"
        raise LaunchError(
            f"--type={text}: {generation.name} has no slice of that size (the number counts {counted}); "
            f"there are {', '.join(sizes)}{' …' if generation.dimensions == 3 else ''}"
        )
    return generation, chips


def _generation(name: str, setting: str) -> Generation:
    for generation in GENERATIONS.values():
        if name in (generation.name, generation.type_prefix):
            return generation
    raise LaunchError(f"{setting}: there is no TPU {name!r} here; there are {', '.join(GENERATIONS)}. {PLANNED}")


def _sides(generation: Generation, text: str, setting: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9][0-9]*(x[1-9][0-9]*)*", text):
        raise LaunchError(
            f"{setting}: write the sides in chips, such as {'x'.join(map(str, _some_shapes(generation)[3]))}"
        )
    sides = tuple(map(int, text.split("x")))
    if generation.dimensions == 2:
        valid = sides in FLAT
    else:
        cubes = len(sides) == 3 and all(side % CUBE_SIDE == 0 for side in sides)
        valid = sides in BELOW_A_CUBE or (cubes and math.prod(sides) <= generation.most_chips)
    if not valid:
        shapes = ", ".join("x".join(map(str, shape)) for shape in _some_shapes(generation))
        more = (
            f", and A x B x C in multiples of 4 up to {generation.most_chips} chips"
            if generation.dimensions == 3
            else ""
        )
        raise LaunchError(f"{setting}: {generation.name} has no slice {text}; there are {shapes}{more}. {PLANNED}")
    return sides


def _some_shapes(generation: Generation) -> tuple[tuple[int, ...], ...]:
    return FLAT if generation.dimensions == 2 else (*BELOW_A_CUBE, (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8))


def _default_sides(generation: Generation, chips: int) -> tuple[int, ...]:
    """The sides that an accelerator type of so many chips means, the nearest to a cube, or () where there is none."""
    small = [sides for sides in (FLAT if generation.dimensions == 2 else BELOW_A_CUBE) if math.prod(sides) == chips]
    if small or generation.dimensions == 2:
        return small[0] if small else ()
    if chips > generation.most_chips or chips % CUBE_SIDE**3:
        return ()
    cubes = chips // CUBE_SIDE**3
    divisors = [side for side in range(1, cubes + 1) if cubes % side == 0]
    shapes = [shape for shape in itertools.combinations_with_replacement(divisors, 3) if math.prod(shape) == cubes]
    return tuple(CUBE_SIDE * side for side in min(shapes, key=sum))


def check_name(setting: str, name: str, longest: int) -> None:
    """Refuses what a cloud would refuse later: lower-case letters, digits and hyphens, a letter first.

    Args:
      setting: what the name is of, for the message.
      name: it.
      longest: in characters; names of machines are made by adding to it.
    """
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > longest:
        raise LaunchError(
            f"{setting} {name!r}: write lower-case letters, digits and hyphens, a letter first, no hyphen last, "
            f"at most {longest} characters"
        )


def check_least(options, least: dict[str, int]) -> None:
    """Refuses numbers that are too small.

    Args:
      options: of a command line.
      least: what each option has to be at least; one that the action does not have is passed over.
    """
    for name, bound in least.items():
        value = getattr(options, name, bound)
        if value < bound:
            raise LaunchError(f"--{name}={value}: at least {bound}")


def check_zone(zone: str | None, generation: Generation | None = None, unlisted: bool = False) -> None:
    """Refuses a zone that is none, or that is not known to have the generation.

    Args:
      zone: such as us-west4-a.
      generation: that is to be found there; None where the TPU exists already.
      unlisted: take a zone that the list above lacks; a cloud opens zones faster than a list here follows.
    """
    known = f"; {generation.name} is in {', '.join(generation.zones)}" if generation else ""
    if not zone:
        raise LaunchError(f"--zone is missing{known}")
    if not re.fullmatch(r"[a-z]+(-[a-z]+)+[0-9]+-[a-z0-9]+", zone):
        hint = " (that is a region: add its zone)" if re.fullmatch(r"[a-z]+-[a-z]+[0-9]+", zone) else ""
        raise LaunchError(f"--zone={zone} is no zone{hint}{known or ', such as us-west4-a'}")
    if generation and zone not in generation.zones and not unlisted:
        near = difflib.get_close_matches(zone, generation.zones, n=1)
        raise LaunchError(
            f"--zone={zone} is not known to have {generation.name}"
            f"{f' (did you mean {near[0]}?)' if near else ''}{known}. "
            "If it has come since: --unlisted_zone"
        )


def check_project(project: str | None) -> None:
    """Refuses what cannot be a project's id; None means gcloud's own setting."""
    if project is not None and not re.fullmatch(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]", project):
        raise LaunchError(f"--project={project!r} is no project id: 6 to 30 lower-case letters, digits and hyphens")
