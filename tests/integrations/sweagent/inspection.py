"""What there is of SWE-agent and swe-rex: ``inspection.py '{"attributes": [paths], "hooks": [paths]}'``.

For an attribute its parameters, if it has any, for a class those of its methods; null if there is none.
"""

import importlib
import inspect
import json
import sys


def found(path):
    """What a dotted path of a module and attributes leads to."""
    words = path.split(".")
    for length in range(len(words) - 1, 0, -1):
        try:
            place = importlib.import_module(".".join(words[:length]))
        except ModuleNotFoundError:
            continue
        for word in words[length:]:
            fields = getattr(place, "model_fields", {})
            place = fields[word] if word in fields else getattr(place, word)
        return place
    return None


def parameters(place):
    return sorted(inspect.signature(place).parameters) if inspect.isfunction(place) else []


asked = json.loads(sys.argv[1])
told = {"attributes": {}, "hooks": {}}
for path in asked["attributes"]:
    place = found(path)
    told["attributes"][path] = None if place is None else parameters(place)
for path in asked["hooks"]:
    place = found(path)
    if place is not None:
        methods = inspect.getmembers(place, inspect.isfunction)
        told["hooks"][path] = {
            name: [word for word in parameters(method) if word != "self"]
            for name, method in methods
            if name.startswith("on_")
        }
print(json.dumps(told))
