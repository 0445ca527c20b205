"""``python -m tools.images``: build, save and measure the images. ``make images`` calls it."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.images import base, machine
from tools.images.catalog import BY_NAME, DOCKER, EPOCH, IMAGES, LOCAL, ROOT, Image
from tools.images.engine import Build, Engine, EngineError, find


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 with an error message if it fails."""
    given = _parser().parse_args(arguments)
    try:
        given.run(find(given.engine), given)
    except EngineError as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools.images", description=__doc__)
    parser.add_argument(
        "--engine", default=os.environ.get("ENGINE") or None, help="podman, buildah or docker"
    )
    parser.add_argument("--tag", default=os.environ.get("TAG") or "dev")
    verbs = parser.add_subparsers(required=True)
    build = verbs.add_parser("build", help="build all usual images, or those named")
    build.add_argument("names", nargs="*", choices=[*BY_NAME, []], metavar="NAME")
    build.add_argument("--base", default=os.environ.get("BASE") or None, help="the base image")
    build.add_argument("--fresh", action="store_true", help="without what is cached of builds")
    build.add_argument("--tree", type=Path, default=ROOT, help="built from here; this repository")
    build.set_defaults(run=build_images)
    alone = verbs.add_parser("base", help="only make the base of a machine without a registry")
    alone.set_defaults(run=make_base)
    save = verbs.add_parser("save", help="write OCI archives, one an image, into a folder")
    save.add_argument("folder", type=Path)
    save.add_argument("names", nargs="*", choices=[*BY_NAME, []], metavar="NAME")
    save.set_defaults(run=save_images)
    sizes = verbs.add_parser("sizes", help="what the images take on disk")
    sizes.set_defaults(run=print_sizes)
    return parser


def epoch() -> int:
    """The time of every file in the images."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or EPOCH)


def chosen(names: Sequence[str]) -> list[Image]:
    """The images of these names; none: the usual ones."""
    return [BY_NAME[name] for name in names] or [image for image in IMAGES if image.usual]


def own_base(engine: Engine, tag: str) -> str:
    """The reference of the debootstrapped base, made and built if need be."""
    reference = f"{LOCAL}/shiftwork/{base.NAME}:{tag}"
    with tempfile.TemporaryDirectory(prefix="shiftwork-images-") as name:
        kept = base.archive()
        if not kept.is_file():
            print_progress("base", "debootstrap, once on this machine")
        context = Path(name)
        base.make(epoch())
        # A hard link or a copy: a build sees its own folder only.
        try:
            (context / "base.tar").hardlink_to(kept)
        except OSError:
            (context / "base.tar").write_bytes(kept.read_bytes())
        build = Build(DOCKER / "base.Dockerfile", context, reference, epoch())
        took = engine.build(build, log_of("base"))
    print_progress("base", f"{reference} {megabytes(engine.size(reference))} ({took:.0f} s)")
    return reference


def make_base(engine: Engine, given: argparse.Namespace) -> None:
    """The base alone."""
    own_base(engine, given.tag)


def build_images(engine: Engine, given: argparse.Namespace) -> None:
    """Build what is asked for, one after the other, a line for each."""
    images = chosen(given.names)
    print_progress(
        "engine", f"{engine.program}, {len(images)} image(s); logs in {log_of('x').parent}"
    )
    foundation = given.base or own_base(engine, given.tag)
    with machine.secrets() as secrets:
        for number, image in enumerate(images, 1):
            reference = image.reference(given.tag)
            print_progress(image.name, f"{number} of {len(images)} …")
            took = engine.build(
                Build(
                    dockerfile=given.tree / image.dockerfile.relative_to(ROOT),
                    context=given.tree,
                    reference=reference,
                    epoch=epoch(),
                    arguments={
                        "BASE": foundation,
                        "VERSION": given.tag,
                        "REVISION": revision(),
                        **machine.proxies(),
                    },
                    secrets=secrets,
                    fresh=given.fresh,
                ),
                log_of(image.name),
            )
            print_progress(
                image.name, f"{reference} {megabytes(engine.size(reference))} ({took:.0f} s)"
            )


def save_images(engine: Engine, given: argparse.Namespace) -> None:
    """Archives for ``ctr -n k8s.io images import``; by default of every image that is here."""
    given.folder.mkdir(parents=True, exist_ok=True)
    images = chosen(given.names) if given.names else list(IMAGES)
    for image in images:
        reference = image.reference(given.tag)
        if not engine.exists(reference):
            if given.names:
                raise EngineError(f"{reference} is not here: make images")
            continue
        archive = given.folder / f"{image.name}.tar"
        engine.save(reference, archive)
        print_progress(image.name, f"{archive} {megabytes(archive.stat().st_size)}")


def print_sizes(engine: Engine, given: argparse.Namespace) -> None:
    """One line for each image that is here."""
    for image in IMAGES:
        reference = image.reference(given.tag)
        if engine.exists(reference):
            print_progress(image.name, f"{reference} {megabytes(engine.size(reference))}")


def revision() -> str:
    """The commit that the images are made from, for their label."""
    found = machine.output_of("git", "-C", str(ROOT), "rev-parse", "HEAD").strip()
    changed = machine.output_of("git", "-C", str(ROOT), "status", "--porcelain")
    return f"{found or 'unknown'}{'-changed' if changed else ''}"


def log_of(name: str) -> Path:
    """The log file of a build."""
    return base.archive().parent / "logs" / f"{name}.log"


def megabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1e6:.0f} MB"


def print_progress(subject: str, words: str) -> None:
    """One line of progress."""
    print(f"{subject:<11} {words}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
