"""What every adapter's test stands on.

``lanes``: the environments the frameworks live in, and scripts run there · ``engine``: an engine that plays a
script and keeps the bytes it got · ``dialogue`` and the faces ``chat``, ``completions``, ``responses``,
``messages``: what it says · ``server``: a real ``thunder serve`` and what it told of · ``proofs``: what the
tests show · ``containers``: an image for those that need Docker.
"""
