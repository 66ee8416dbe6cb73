"""Text in YAML that somebody else wrote: its values are as long as they look."""

from typing import Any

import yaml

from chorale.synth.errors import InvalidInput

MAX_CHARACTERS = 3000
"""Of a single value; numbers of 4300 digits cannot be written as text."""


class _Loader(yaml.SafeLoader):
    """Refuses aliases, with which a short text becomes more than memory holds, and endless numbers."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise InvalidInput("YAML aliases such as {} are not supported", "*name", "repeat the value")
        event: object = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_CHARACTERS:
            rule = f"a value in YAML must have at most {MAX_CHARACTERS} characters"
            raise InvalidInput(rule, f"{event.value[:40]}…", "write it shorter")
        return super().compose_node(parent, index)


def load_yaml(text: str, rule: str, way_out: str = "repair the syntax there") -> Any:
    """Return the value of `text`. InvalidInput where it has none, which `rule` says, or an endless one."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidInput(rule, " ".join(str(error).split()), way_out) from None
