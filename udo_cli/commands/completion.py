"""`udo completion`: the script that completes `udo` in a shell."""

from __future__ import annotations

import click

from udo_cli import base

EXAMPLES = """
udo completion bash > ~/.local/share/bash-completion/completions/udo
udo completion zsh > "${fpath[1]}/_udo"
udo completion fish > ~/.config/fish/completions/udo.fish
"""


@base.command("completion", EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of SHELL: commands, options, deployments, operators and versions."""
    from click.shell_completion import get_completion_class

    from udo_cli.main import cli

    made = get_completion_class(shell)
    assert made is not None, f"click knows {shell}"
    if shell == "bash":  # else bash would take NAME@VERSION for three words
        click.echo('COMP_WORDBREAKS="${COMP_WORDBREAKS//@/}"')
    click.echo(made(cli, {}, "udo", "_UDO_COMPLETE").source())
