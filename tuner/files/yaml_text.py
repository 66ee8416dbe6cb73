"""Loads YAML from untrusted sources; aliases, repeated keys and very long values are refused."""

from collections import Counter
from operator import itemgetter
from typing import Any

import yaml

from chorale.synth.errors import InvalidInput

MAX_CHARACTERS = 3000
"""Maximum length of a single value, chosen because Python refuses to convert numbers of more than 4300 digits."""


class _Loader(yaml.SafeLoader):
    """Refuses overlong values, repeated keys, and aliases, which can expand a short text beyond available memory."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise InvalidInput("YAML aliases such as {} are not supported", "*name", "repeat the value")
        event: object = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_CHARACTERS:
            rule = f"a value in YAML must have at most {MAX_CHARACTERS} characters"
            raise InvalidInput(rule, f"{event.value[:40]}…", "write it shorter")
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        key, count = max(Counter(str(key.value) for key, _ in node.value).items(), key=itemgetter(1), default=("", 0))
        if count > 1:
            raise InvalidInput("the key {} occurs more than once in one mapping", key, "keep one of them")
        return node


def load_yaml(text: str, rule: str, way_out: str = "repair the syntax there") -> Any:
    """Parse YAML `text`. Raises InvalidInput with the message `rule` or, if `_Loader` refuses a value, its message."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - derived from SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidInput(rule, " ".join(str(error).split()), way_out) from None
