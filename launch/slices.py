"""TPU slices, and checks of names, zones and shapes before a cloud is called.

Source: docs.cloud.google.com/tpu/docs, pages "v4", "v5e", "v5p", "v6e" and "tpu7x" (configurations).

Requires Python 3.10 and only its standard library, because it runs on laptops and VMs without other packages.
"""

import argparse
import dataclasses
import difflib
import itertools
import math
import re

from generations import GENERATIONS, Generation

CUBE_SIDE = 4
_DEVICES_PER_CHIP = {"tpu7x": 2}  # JAX sees the cores of other generations as one device
PLAN_HINT = "`t5x_like plan` supports more chips and shapes than can be launched"


class LaunchError(ValueError):
    """The request cannot be launched. The message says how to correct it."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """One slice.

    Attributes:
      generation: The generation of its chips.
      sides: Sides of its torus, in chips.
    """

    generation: Generation
    sides: tuple[int, ...]

    @property
    def chips(self) -> int:
        """Number of chips."""
        return math.prod(self.sides)

    @property
    def devices(self) -> int:
        """Number of JAX devices."""
        return self.chips * _DEVICES_PER_CHIP.get(self.generation.name, 1)

    @property
    def topology(self) -> str:
        """The sides as text, such as `4x4`."""
        return "x".join(map(str, self.sides))

    @property
    def accelerator_type(self) -> str:
        """The name in the TPU API, which determines the number of chips but not the sides."""
        return f"{self.generation.type_prefix}-{self.chips * self.generation.units_per_chip}"

    @property
    def is_default_shape(self) -> bool:
        """Whether the accelerator type alone requests these sides."""
        return sorted(self.sides) == sorted(_default_sides(self.generation, self.chips))

    def __str__(self) -> str:
        return f"{self.generation.name}:{self.topology} ({self.accelerator_type}, {self.chips} chips)"


def parse_slice(accelerator_type: str | None, topology: str | None) -> Slice:
    """Returns the slice that `--type` and `--topology` describe.

    One of the two is enough. If both are given, they must agree.

    Args:
      accelerator_type: The value of `--type`: `v5litepod-16`, `v5e-16` or `v4-256`. The number counts chips of v5e and
        v6e, and cores of v4, v5p and tpu7x.
      topology: The value of `--topology`: `v5e:4x4` as in `t5x_like plan`, or `4x4` together with an accelerator type.

    Raises:
      LaunchError: The slice does not exist, or the two arguments disagree.
    """
    if accelerator_type is None and topology is None:
        raise LaunchError("no slice given. Add --topology=v5e:4x4 (as in `t5x_like plan`) or --type=v5litepod-16")
    topology_generation, sides_text = None, topology
    if topology is not None and ":" in topology:
        prefix, _, sides_text = topology.partition(":")
        topology_generation = _generation(prefix, f"--topology={topology}")
    if accelerator_type is None:
        if topology_generation is None:
            raise LaunchError(
                f"--topology={topology}: TPU generation missing. Write --topology=v5e:{topology}, or add --type"
            )
        return Slice(topology_generation, _sides(topology_generation, sides_text, f"--topology={topology}"))
    generation, chips = _parse_type(accelerator_type)
    if topology_generation is not None and topology_generation is not generation:
        raise LaunchError(
            f"--type={accelerator_type} is {generation.name} and --topology={topology} is {topology_generation.name}. "
            "Give one of them."
        )
    if sides_text is None:
        return Slice(generation, _default_sides(generation, chips))
    sides = _sides(generation, sides_text, f"--topology={topology}")
    if math.prod(sides) != chips:
        raise LaunchError(
            f"--type={accelerator_type} has {chips} chips and --topology={topology} has {math.prod(sides)}: "
            f"that topology is {Slice(generation, sides).accelerator_type}, and {accelerator_type} is "
            f"{Slice(generation, _default_sides(generation, chips)).topology}. Give one of them."
        )
    return Slice(generation, sides)


def _parse_type(text: str) -> tuple[Generation, int]:
    match = re.fullmatch(r"(?P<name>[a-z0-9]+)-(?P<units>[1-9][0-9]*)", text)
    if match is None:
        raise LaunchError(
            f"--type={text}: not a generation and a size. Write for example v5litepod-16, v6e-8, v4-32 or v5p-128."
        )
    generation, units = _generation(match["name"], f"--type={text}"), int(match["units"])
    chips, remainder = divmod(units, generation.units_per_chip)
    if remainder or not _default_sides(generation, chips):
        sizes = [Slice(generation, sides).accelerator_type for sides in _example_shapes(generation)]
        counted = "cores, two per chip" if generation.units_per_chip == 2 else "chips"
        raise LaunchError(
            f"--type={text}: {generation.name} does not have a slice of this size (the number counts {counted}). "
            f"Available: {', '.join(sizes)}{' …' if generation.dimensions == 3 else ''}"
        )
    return generation, chips


def _generation(name: str, setting: str) -> Generation:
    for generation in GENERATIONS.values():
        if name in (generation.name, generation.type_prefix):
            return generation
    raise LaunchError(f"{setting}: unknown TPU generation {name!r}. Available: {', '.join(GENERATIONS)}. {PLAN_HINT}")


def _sides(generation: Generation, text: str, setting: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9][0-9]*(x[1-9][0-9]*)*", text):
        example = "x".join(map(str, _example_shapes(generation)[3]))
        raise LaunchError(f"{setting}: not a topology. Write the sides in chips, such as {example}")
    sides = tuple(map(int, text.split("x")))
    cubes = generation.dimensions == 3 == len(sides) and all(side % CUBE_SIDE == 0 for side in sides)
    if sides not in generation.shapes and not (cubes and math.prod(sides) <= generation.max_chips):
        shapes = ", ".join("x".join(map(str, shape)) for shape in _example_shapes(generation))
        larger = f", and AxBxC in multiples of {CUBE_SIDE} up to {generation.max_chips} chips"
        raise LaunchError(
            f"{setting}: {generation.name} does not have a slice {text}. "
            f"Available: {shapes}{larger if generation.dimensions == 3 else ''}. {PLAN_HINT}"
        )
    return sides


def _example_shapes(generation: Generation) -> tuple[tuple[int, ...], ...]:
    cubes = ((4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8)) if generation.dimensions == 3 else ()
    return (*generation.shapes, *cubes)


def _default_sides(generation: Generation, chips: int) -> tuple[int, ...]:
    """Returns the sides that an accelerator type with this number of chips requests, or () if it does not exist.

    The default shape of a large three-dimensional slice is the one closest to a cube.
    """
    listed = [sides for sides in generation.shapes if math.prod(sides) == chips]
    if listed or generation.dimensions == 2:
        return listed[0] if listed else ()
    if chips > generation.max_chips or chips % CUBE_SIDE**3:
        return ()
    cubes = chips // CUBE_SIDE**3
    divisors = [side for side in range(1, cubes + 1) if cubes % side == 0]
    shapes = [shape for shape in itertools.combinations_with_replacement(divisors, 3) if math.prod(shape) == cubes]
    return tuple(CUBE_SIDE * side for side in min(shapes, key=sum))


def check_name(setting: str, name: str, max_length: int) -> None:
    """Checks a resource name: lower-case letters, digits and hyphens, starting with a letter.

    Args:
      setting: What the name belongs to, for the error message.
      name: The name to check.
      max_length: Maximum number of characters. It is below the cloud's limit where machine names append a suffix.

    Raises:
      LaunchError: The cloud would reject the name.
    """
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > max_length:
        raise LaunchError(
            f"{setting} {name!r}: invalid name. Use lower-case letters, digits and hyphens; start with a letter, do "
            f"not end with a hyphen, and use at most {max_length} characters."
        )


def check_minimums(options: argparse.Namespace, minimums: dict[str, int]) -> None:
    """Checks lower bounds of numeric options.

    Args:
      options: The parsed command line.
      minimums: Minimum value by option name. Options that the action does not have are skipped.

    Raises:
      LaunchError: A value is below its minimum.
    """
    for name, minimum in minimums.items():
        value = getattr(options, name, minimum)
        if value < minimum:
            raise LaunchError(f"--{name}={value}: below the minimum. Give at least {minimum}.")


def check_zone(zone: str | None, generation: Generation | None = None, unlisted: bool = False) -> None:
    """Checks that a zone is well-formed and is known to have a generation.

    Args:
      zone: A zone such as us-west4-a.
      generation: The generation to be created there, or None if the TPU already exists.
      unlisted: Accept a zone that is missing in `GENERATIONS`, because clouds open zones faster than this list follows.

    Raises:
      LaunchError: The zone is missing, malformed, or not known to have the generation.
    """
    known = f"{generation.name} is available in {', '.join(generation.zones)}" if generation else ""
    if not zone:
        raise LaunchError(f"--zone is missing. {known or 'Give for example --zone=us-west4-a'}")
    if not re.fullmatch(r"[a-z]+(-[a-z]+)+[0-9]+-[a-z0-9]+", zone):
        region = re.fullmatch(r"[a-z]+-[a-z]+[0-9]+", zone)
        hint = " It is a region: append the letter of a zone." if region else ""
        raise LaunchError(f"--zone={zone} is not a zone.{hint} {known or 'Give for example --zone=us-west4-a'}")
    if generation and zone not in generation.zones and not unlisted:
        similar = difflib.get_close_matches(zone, generation.zones, n=1)
        suggestion = f" (did you mean {similar[0]}?)" if similar else ""
        raise LaunchError(
            f"--zone={zone} is not known to have {generation.name}{suggestion}. {known}. "
            "If the zone is new, add --unlisted_zone."
        )


def check_project(project: str | None) -> None:
    """Checks the form of a project ID. None means the project that gcloud is configured with.

    Raises:
      LaunchError: The text is not a project ID.
    """
    if project is not None and not re.fullmatch(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]", project):
        raise LaunchError(
            f"--project={project!r} is not a project ID. Give 6 to 30 lower-case letters, digits and hyphens."
        )
