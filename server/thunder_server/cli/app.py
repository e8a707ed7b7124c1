"""The command line's table of contents: one module per command, each with a ``register(app)``.

Command modules import what they run inside the command, so that ``thunder --help`` stays quick.
"""

from __future__ import annotations

import typer

from thunder_server.cli import (
    analyze,
    backends,
    demo,
    doctor,
    emulate,
    programs,
    reaper,
    resources,
    run,
    serve,
    simulate,
    top,
    tune,
    why,
)

app = typer.Typer(
    name="thunder",
    help="Schedule whole agent runs, not single requests.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def thunder() -> None:
    """Schedule whole agent runs, not single requests."""


def _flowing(text: str | None) -> str:
    """A docstring whose paragraphs are lines, for the terminal to break."""
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


COMMANDS = (
    demo,
    serve,
    run,
    emulate,
    simulate,
    analyze,
    tune,
    top,
    programs,
    backends,
    resources,
    why,
    doctor,
    reaper,
)
"""In the order of ``thunder --help``."""

for command in COMMANDS:
    command.register(app)
for listed in app.registered_commands:
    listed.help = _flowing(listed.callback.__doc__)
