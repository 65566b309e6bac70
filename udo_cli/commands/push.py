"""`udo push`: check, package and upload an operator version."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from udo_cli import base
from udo_cli.options import given
from udo_cli.options.given import OperatorConfig
from udo_cli.options.typed import grouped, option

if TYPE_CHECKING:
    from udo_cli.packing.build import Packed, UnpackedOperator
    from udo_cli.settings import CliSettings
    from udo_protocol.registry.api import Registry

_BATCH_ROWS = 10_000

EXAMPLES = """
udo push fraud
udo push fraud --version 2
udo push fraud --python 3.12 --platform linux_aarch64      for other nodes than this machine
udo push fraud --image fraud:2                             an image of the local Docker daemon, as it is
udo push fraud --image fraud.tar                           ... or from docker save, skopeo, buildah
udo push fraud --sign release.key
MODEL_KEY=... udo push fraud --secret MODEL_KEY            as its deployments have it: events.json is answered with it
udo push fraud --check fraud --dry-run                     check whether deployment fraud's state migrates
UDO_REGISTRY=https://udo.example.org UDO_TOKEN=... udo push fraud --json
"""


@dataclass(frozen=True)
class PackageOptions:
    """The content of the package, and the nodes that it is for."""

    version: str | None = option(help="Version, instead of that in operator.toml.")
    python: str | None = option(help="Python of the nodes, such as 3.12; this one by default.")
    platform: str | None = option(help="Platform of the nodes, such as linux_x86_64; this one by default.")
    image: str | None = option(metavar="REF|FILE", help="Push a whole image, unchanged, instead of the folder's code.")
    base: str | None = option(
        metavar="REPO:TAG|none", help="Runtime base; by default the one in the registry for this Python and platform."
    )
    sign: Path | None = option(type=click.Path(path_type=Path, dir_okay=False), metavar="KEY", help="Sign with this private key.")


@base.command("push", EXAMPLES)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@grouped(PackageOptions, "package")
@click.option("--check", "deployment", metavar="DEPLOYMENT", help="First run migrate() on a copy of this deployment's state on the node.")
@click.option(
    "--no-samples", is_flag=True, help="Only import the operator and leave events.json unanswered: for one that only works in production."
)
@grouped(given.ConfigOptions, "config")
@click.option("--dry-run", is_flag=True, help="Check and package, upload nothing.")
@base.json_option
def command(
    directory: Path,
    package: PackageOptions,
    deployment: str | None,
    no_samples: bool,
    config: given.ConfigOptions,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Upload the operator in DIRECTORY as an immutable version.

    Checks operator.toml, resolves its requirements for the nodes' Python, and packs reproducible layers on top of the
    runtime base: the same files give the same digest. What was packed then answers events.json, if DIRECTORY has it, as in
    `udo test`, with what --env, --secret and --file give it; without samples, or for other nodes' platform, it is imported
    at most. Layers that the registry has are not sent again. With --image only operator.toml is taken from DIRECTORY; such
    an operator needs nodes with the Docker driver.
    """
    from udo_cli.packing import archive, bases, build, image, provenance
    from udo_cli.packing.requirements import current_target
    from udo_cli.packing.upload import upload
    from udo_cli.platform import throwaway
    from udo_cli.settings import CliSettings
    from udo_cli.text import output
    from udo_protocol.errors import UsageError
    from udo_protocol.registry import signing

    if package.image and (package.python or package.platform or package.base or deployment or config):
        raise UsageError(
            "--image is pushed as it is: --python, --platform, --base, --check, --env, --secret and --file do not apply; "
            "udo test --image tries it"
        )
    if no_samples and config:
        raise UsageError("--env, --secret and --file are for the samples, which --no-samples leaves out")
    told, settings, target = config.read(), CliSettings(), build.Target.of(package.python, package.platform)
    key = signing.load_private(package.sign) if package.sign else None
    with ExitStack() as stack:
        work = stack.enter_context(throwaway.workspace("udo-push-"))
        api = _registry(settings, stack, needed=not dry_run)
        if package.image:
            whole = archive.read(package.image, work)
            manifest = build.load_image_manifest(directory, package.version, whole)
            made, left_out = image.label(manifest, whole.config, whole.layers), []
        else:
            folder = build.load(directory, package.version, target)
            manifest, left_out = folder.manifest, folder.left_out
            below = bases.choose(api, "python", target, package.base, output.say)
            if left_out:
                output.say(f"left out of the package: {output.some(left_out)} (hidden files, builds and environments)")
            built = build.build(folder, work, settings.local.dependencies, output.say, below)
            made = built.image
            with build.unpacked_code(built, work) as operator:
                if target.here:
                    with build.telling_what_was_left_out(folder):
                        _check(built, operator, None if no_samples else directory / "events.json", told)
                else:
                    output.say(f"not checked: packaged for {target.python_tag} {target.platform}, this is {' '.join(current_target())}")
                if deployment:
                    from udo_cli.packing import migration

                    migration.check(operator, deployment, output.say)
        if api is not None and not dry_run:
            upload(api, manifest, made, output.say, provenance.of(directory, made, settings.user, package.image or "folder"), key)
    if as_json:
        packed = [{"kind": la.kind, "digest": la.digest, "size": la.size_bytes} for la in made.layers]
        found = {"name": manifest.name, "version": manifest.version, "digest": made.digest, "layers": packed, "pushed": not dry_run}
        output.emit({**found, "left_out": left_out, "base": made.base and {"reference": made.base.reference, "digest": made.base.digest}})
        return
    click.echo(f"{manifest.reference} {made.digest}")
    if not dry_run:
        output.say(f"next: udo deploy {manifest.reference}, or udo update {manifest.name} {manifest.version}")


def _check(packed: Packed, operator: UnpackedOperator, samples: Path | None, config: OperatorConfig) -> None:
    """OperatorError or SchemaError if the operator does not answer its samples, or, without samples, cannot be imported."""
    from udo_cli.text import output

    manifest = packed.manifest
    if samples is None or not samples.exists():
        from udo_cli.packing import isolated

        what = f"{manifest.command[0]} speaks the operator protocol" if manifest.command else f"{manifest.entry} can be imported"
        output.say(f"checking that {what}")
        isolated.check_import(operator)
        return
    from udo_cli import events
    from udo_cli.packing import tried
    from udo_protocol.errors import OperatorError, SchemaError

    batches = events.read(samples, manifest.input_schema, _BATCH_ROWS)
    try:
        trial = tried.answer(packed, batches, config)
    except (OperatorError, SchemaError) as e:
        raise type(e)(
            f"{e}\nIt has to answer {samples.name} to be pushed. --env, --secret and --file give it what its deployments have; for what "
            "only works in production: --no-samples"
        ) from None
    output.say(f"{samples.name}: {sum(b.num_rows for b in batches)} events, {trial.answers.num_rows} answers, {trial.took_ms:.1f} ms")


def _registry(settings: CliSettings, stack: ExitStack, *, needed: bool) -> Registry | None:
    """The registry; None if there is none and it is not needed."""
    from udo_cli.platform import remote
    from udo_protocol.errors import Unavailable

    try:
        api = stack.enter_context(remote.registry(settings))
        if not needed:
            api.health()
        return api
    except Unavailable:
        if needed:
            raise
        return None
