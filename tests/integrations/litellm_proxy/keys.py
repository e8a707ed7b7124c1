"""The proxy's keys, without a database: ``sk-TEAM-USER``, and ``sk-fast-…`` with a priority of its own."""

from litellm.proxy._types import UserAPIKeyAuth


async def authenticate(request, api_key):
    _, team, user = api_key.split("-")
    metadata = {"thunder_priority": 3} if team == "fast" else {}
    return UserAPIKeyAuth(
        api_key=api_key, team_id=team or None, user_id=user or "default_user_id", metadata=metadata
    )
