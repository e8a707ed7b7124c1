"""Who waits for whom: children hold up their parents, and the last of a group all of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from thunder_server.core.program import Program, State
from thunder_server.core.world import World

STRAGGLERS = 1 / 4
"""Who is left of a group when no more than this share is: its stragglers."""


@dataclass(slots=True)
class Group:
    """Programs of one name, as far as any of them lives."""

    live: dict[Program, None] = field(default_factory=dict)
    ended: int = 0
    was_gated: bool = False  # and its programs know of it

    @property
    def gated(self) -> bool:
        """Next to nobody is left."""
        return len(self.live) <= STRAGGLERS * (len(self.live) + self.ended)


class Relations:
    """Keeps parents, children and groups together; whoever stands differently by it is touched."""

    def __init__(self, world: World) -> None:
        self._w = world
        self._groups: dict[str, Group] = {}

    def changed(self, program: Program, group_before: str | None) -> None:
        """A program was opened, or told whose child and of which group it is."""
        parent = self._w.programs.get(program.parent_id or "")
        if parent is not program.parent and parent is not program:
            self._leave_parent(program)
            if parent is not None and parent.state is not State.ENDED:
                program.parent = parent
                parent.children[program] = None
        if program.group is not None and program.group != group_before:
            self._leave_group(program, group_before)
            group = self._groups.setdefault(program.group, Group())
            group.live[program] = None
            program.straggles = group.was_gated
            self._regard(group)

    def ended(self, program: Program) -> None:
        """A program has ended: nobody waits for it any longer, and it for nobody."""
        self._leave_parent(program)
        for child in program.children:
            child.parent = None
            self._w.touch(child)
        program.children.clear()
        if program.group is not None:
            self._groups[program.group].ended += 1
            self._leave_group(program, program.group)

    def _leave_parent(self, program: Program) -> None:
        if program.parent is not None:
            del program.parent.children[program]
            program.parent = None

    def _leave_group(self, program: Program, name: str | None) -> None:
        program.straggles = False
        if name is None:
            return
        group = self._groups[name]
        del group.live[program]
        if group.live:
            self._regard(group)
        else:
            del self._groups[name]

    def _regard(self, group: Group) -> None:
        gated = group.gated
        if gated == group.was_gated:
            return
        group.was_gated = gated
        for program in group.live:
            program.straggles = gated
            self._w.touch(program)
