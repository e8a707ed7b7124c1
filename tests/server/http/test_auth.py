"""Three ways to show a key, and what passes on."""

import pytest
from multidict import CIMultiDict

from thunder_server.auth import Keys
from thunder_server.errors import ApiError

KEYS = Keys(["first", "sécond"])


@pytest.mark.parametrize(
    ("headers", "carried_by"),
    [
        ({"x-thunder-api-key": "first"}, "X-Thunder-Api-Key"),
        ({"authorization": "Bearer first"}, "Authorization"),
        ({"authorization": "bearer  first "}, "Authorization"),
        ({"X-API-Key": "first"}, "x-api-key"),
        ({"x-api-key": "sécond"}, "x-api-key"),
        # The engine's own key in Authorization does not stand in the way of ours.
        ({"authorization": "Bearer sk-engine", "x-thunder-api-key": "first"}, "X-Thunder-Api-Key"),
        ({"authorization": "Bearer first", "x-thunder-api-key": "wrong"}, "Authorization"),
        ({}, None),
        ({"authorization": "Bearer firs"}, None),
        ({"authorization": "Bearer first2"}, None),
        ({"authorization": "Basic first"}, None),
        ({"authorization": "first"}, None),
        ({"authorization": ""}, None),
        ({"x-api-key": ""}, None),
        ({"x-api-key": "\udcff"}, None),
    ],
)
def test_forms(headers: dict[str, str], carried_by: str | None) -> None:
    assert KEYS.admit(CIMultiDict(headers)) == carried_by


def test_without_keys_everybody_is_admitted_and_nothing_is_ours() -> None:
    assert Keys([]).admit(CIMultiDict({"authorization": "Bearer sk-engine"})) == ""
    assert not Keys([]).required


@pytest.mark.parametrize(
    ("headers", "message"), [({}, "needs a key; send one as"), ({"x-api-key": "k"}, "no key of this server")]
)
def test_a_refusal_says_how_to_show_a_key(headers: dict[str, str], message: str) -> None:
    with pytest.raises(ApiError, match=message) as raised:
        KEYS.require(CIMultiDict(headers))
    assert (raised.value.status, raised.value.code) == (401, "invalid_api_key")
