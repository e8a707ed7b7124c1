"""Flags, variables and TOML: who wins, and what is said when something is wrong."""

from pathlib import Path

import pytest

from thunder_server.backend_spec import BackendSpec, normal_url
from thunder_server.settings import Settings, SettingsError, load_settings

BACKEND = {"backend": ["http://a:1"]}


def complaint(tmp_path: Path, flags: dict, environ: dict, toml: str | None = None) -> str:
    config = None
    if toml is not None:
        (tmp_path / "thunder.toml").write_text(toml)
        config = str(tmp_path / "thunder.toml")
    with pytest.raises(SettingsError) as raised:
        load_settings(flags, environ, config)
    message = str(raised.value)
    assert "\n" not in message
    return message.replace(str(tmp_path) + "/", "")


def test_flag_beats_variable_beats_file(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('backend = ["http://f:1"]\nport = 1\npoll = 3\nmax_wait = 30\n')
    environ = {"THUNDER_PORT": "2", "THUNDER_POLL": "2.5", "THUNDER_CAP": " ", "OTHER": "x"}
    settings = load_settings({"port": "3", "cap": None, "backend": []}, environ, str(tmp_path / "t.toml"))
    assert (settings.port, settings.poll, settings.max_wait) == (3, 2.5, 30)
    assert [backend.url for backend in settings.backend] == ["http://f:1"]


def test_directories_are_a_list_or_paths_with_colons() -> None:
    flags = {"backend": ["http://a:1"], "resource_root": ["/x", "/y"]}
    both = (Path("/x"), Path("/y"))
    assert load_settings(flags, {}).resource_root == both
    environ = {"THUNDER_RESOURCE_ROOT": "/x:/y"}
    assert load_settings({"backend": ["http://a:1"]}, environ).resource_root == both


def test_the_file_can_be_named_by_a_variable(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('backend = "http://f:1"')
    assert load_settings({}, {"THUNDER_CONFIG": str(tmp_path / "t.toml")}).backend[0].id == "f:1"


def test_every_setting_has_all_three_forms(tmp_path: Path) -> None:
    """The table is the only list: whatever is a field is read from each source under its own name."""
    sample = {"policy": "cap", "cap": "2", "host": "localhost", "backend": "http://a:1", "engine": "openai"}
    sample["resource_root"] = "/a:/b"
    sample["router_weights"] = "0.6,0.3,0.1"
    for name, field in Settings.model_fields.items():
        text = sample.get(name) or {bool: "true", float: "1.0", int: "1"}.get(field.annotation, "1")  # type: ignore[arg-type]
        base = {"policy": "cap"} if name == "cap" else {"cap": "2"} if name == "policy" else {}
        with_backend = {} if name == "backend" else {"backend": ["http://a:1"]}
        by_variable = load_settings({**with_backend, **base}, {"THUNDER_" + name.upper(): text})
        (tmp_path / "t.toml").write_text(f'{name} = "{text}"')
        by_file = load_settings({**with_backend, **base}, {}, str(tmp_path / "t.toml"))
        assert getattr(by_variable, name) == getattr(by_file, name), name


def test_backends_as_urls_and_tables_take_the_defaults_for_all(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("""
        engine = "openai"
        capacity_tokens = 1000
        backend = ["http://a:1/v1/", {url = "http://b:2/", engine = "vllm", weight = 2, api_key = "k"}]
    """)
    first, second = load_settings({}, {}, str(tmp_path / "t.toml")).backend
    assert first == BackendSpec(url="http://a:1", engine="openai", capacity_tokens=1000)
    assert (second.url, second.engine, second.weight, second.capacity_tokens) == (
        "http://b:2",
        "vllm",
        2.0,
        1000,
    )
    assert second.api_key is not None
    assert "'k'" not in repr(second)


@pytest.mark.parametrize(
    "given", [["http://a:1", "http://b:2"], ["http://a:1 http://b:2"], ["http://a:1,http://b:2"]]
)
def test_backend_flag_repeated_or_taking_several(given: list[str]) -> None:
    assert [backend.id for backend in load_settings({"backend": given}, {}).backend] == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("url", "normal", "id_"),
    [
        ("http://a:8000", "http://a:8000", "a:8000"),
        ("http://a:8000/", "http://a:8000", "a:8000"),
        ("http://a:8000/v1", "http://a:8000", "a:8000"),
        ("http://a:8000/v1/", "http://a:8000", "a:8000"),
        ("https://A.example/team/v1//", "https://a.example/team", "a.example:443"),
        ("http://a", "http://a", "a:80"),
        ("http://[::1]:9/v1", "http://[::1]:9", "[::1]:9"),
    ],
)
def test_one_spelling_of_a_backend(url: str, normal: str, id_: str) -> None:
    assert normal_url(url) == normal
    assert BackendSpec(url=url).id == id_


@pytest.mark.parametrize(
    ("flags", "environ", "toml", "expected"),
    [
        ({}, {}, None, "--backend: say where"),
        ({**BACKEND, "port": "abc"}, {}, None, "--port: should be a whole number, not 'abc'"),
        ({**BACKEND, "port": "65536"}, {}, None, "--port: should be less than or equal to 65535"),
        ({**BACKEND, "port": "9" * 5000}, {}, None, "--port: should be a whole number"),
        (BACKEND, {"THUNDER_RESOURCE_ROOT": "a:/b"}, None, "THUNDER_RESOURCE_ROOT: should be absolute paths"),
        (BACKEND, {}, "resource_root = 5", "thunder.toml: resource_root: should be absolute paths"),
        ({**BACKEND, "poll": "nan"}, {}, None, "--poll: should be a finite number"),
        ({**BACKEND, "auto_lease": "-1"}, {}, None, "--auto-lease: should be greater than 0"),
        ({**BACKEND, "max_body": "much"}, {}, None, "--max-body: should be a size in bytes"),
        (
            {**BACKEND, "policy": "stage"},
            {},
            None,
            "--policy: policy 'stage' is unknown; there are",
        ),
        (
            {**BACKEND, "policy": "papr"},
            {},
            None,
            "--policy: policy 'papr' is unknown; there are phase, paper, cap",
        ),
        (
            {**BACKEND, "engine": "sglangs"},
            {},
            None,
            "--engine: engine 'sglangs' is unknown; there are vllm, sglang",
        ),
        ({**BACKEND, "policy": "cap"}, {}, None, "--policy: policy cap needs a number"),
        ({**BACKEND, "cap": "3"}, {}, None, "--cap: only policy cap"),
        ({**BACKEND, "paper_lambda_min": "2"}, {}, None, "--paper-lambda-min: must not exceed"),
        (
            {**BACKEND, "host": "0.0.0.0"},
            {},
            None,
            "--host: 0.0.0.0 is reachable from elsewhere; add --api-key",
        ),
        (BACKEND, {"THUNDER_HOST": "gpu.local"}, None, "THUNDER_HOST: gpu.local is reachable"),
        ({"backend": ["localhost:8000"]}, {}, None, "did you mean http://localhost:8000 ?"),
        ({"backend": ["ftp://a"]}, {}, None, "--backend: 'ftp://a' is no http:// or https:// URL"),
        ({"backend": ["http://u:p@a"]}, {}, None, "--backend: a backend URL holds no user or password"),
        ({"backend": ["http://a?x=1"]}, {}, None, "--backend: 'http://a?x=1' is more than the engine's root"),
        ({"backend": ["http://a:99999"]}, {}, None, "--backend: 'http://a:99999' is no URL"),
        ({"backend": ["http://a:0"]}, {}, None, "has port 0"),
        ({"backend": ["http://a:1", "http://a:1/v1"]}, {}, None, "are one backend, a:1; name it once"),
        (
            BACKEND,
            {"THUNDER_INSECURE": "maybe"},
            None,
            "THUNDER_INSECURE: should be true or false, not 'maybe'",
        ),
        (BACKEND, {"THUNDER_API_KEY": "a b"}, None, "THUNDER_API_KEY: a key must be visible ASCII"),
        ({**BACKEND, "api_key": ["k", "a b"]}, {}, None, "--api-key: a key must be visible ASCII"),
        (
            {},
            {},
            '[[backend]]\nurl = "http://a"\napi_key = "a\\nb"',
            "backend[0].api_key: a key must be visible",
        ),
        (BACKEND, {}, "port = true", "thunder.toml: port: should be a number"),
        (BACKEND, {}, "prt = 1", "thunder.toml: prt: is no setting; did you mean port ?"),
        (BACKEND, {}, "paper-decay = 1", "did you mean paper_decay ?"),
        (BACKEND, {}, "port = ", "thunder.toml: is no valid TOML: Invalid value (at"),
        (BACKEND, {}, "x = " + "[" * 5000, "thunder.toml: is no valid TOML"),
        ({}, {}, "backend = 5", "thunder.toml: backend: should be a list, not 5"),
        ({}, {}, "backend = [5]", "thunder.toml: backend[0]: should be a URL or a table"),
        ({}, {}, "[[backend]]\nweight = 1", "thunder.toml: backend[0].url: is missing"),
        (
            {},
            {},
            "[[backend]]\nurl = 'http://a'\nwieght = 1",
            "backend[0].wieght: is no setting; did you mean weight",
        ),
        (
            {},
            {},
            "[[backend]]\nurl = 'http://a'\nweight = 0",
            "backend[0].weight: should be greater than 0, not 0",
        ),
    ],
)
def test_complaints_name_the_place(
    tmp_path: Path, flags: dict, environ: dict, toml: str | None, expected: str
) -> None:
    assert expected in complaint(tmp_path, flags, environ, toml)


def test_an_unreadable_file_is_a_complaint(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^--config: cannot read .*nowhere\.toml: No such file"):
        load_settings(BACKEND, {}, str(tmp_path / "nowhere.toml"))
    with pytest.raises(SettingsError, match=r"THUNDER_CONFIG: cannot read .*: Is a directory"):
        load_settings(BACKEND, {"THUNDER_CONFIG": str(tmp_path)})
    (tmp_path / "latin.toml").write_bytes(b"host = '\xff'")
    with pytest.raises(SettingsError, match="UTF-8"):
        load_settings(BACKEND, {}, str(tmp_path / "latin.toml"))


def test_a_key_is_never_repeated_in_a_complaint(tmp_path: Path) -> None:
    assert "hush" not in complaint(tmp_path, BACKEND, {}, "api_key = [['hush']]")
    assert "hush" not in complaint(tmp_path, BACKEND, {"THUNDER_API_KEY": "hush hush"})


def test_sizes_with_units() -> None:
    sizes = [
        load_settings({**BACKEND, "max_body": text}, {}).max_body for text in ("9", "2k", "64MiB", "1 GB")
    ]
    assert sizes == [9, 2048, 2**26, 2**30]


def test_a_host_elsewhere_needs_a_key_or_consent() -> None:
    assert load_settings({**BACKEND, "host": "::1"}, {}).host == "::1"
    assert load_settings({**BACKEND, "host": "0.0.0.0", "insecure": True}, {}).insecure
    assert load_settings({**BACKEND, "host": "0.0.0.0", "api_key": ["k"]}, {}).api_keys == ("k",)


def test_there_may_be_several_keys(tmp_path: Path) -> None:
    assert load_settings({**BACKEND, "api_key": ["k", "l"]}, {}).api_keys == ("k", "l")
    (tmp_path / "thunder.toml").write_text("api_key = ['k', 'l']")
    assert load_settings(BACKEND, {}, str(tmp_path / "thunder.toml")).api_keys == ("k", "l")


def test_weights_of_the_router_add_up(tmp_path: Path) -> None:
    assert load_settings(BACKEND, {"THUNDER_ROUTER_WEIGHTS": "0.8, 0.1, 0.1"}).router_weights == (
        0.8,
        0.1,
        0.1,
    )
    said = complaint(tmp_path, {}, {}, 'backend = "http://a:1"\nrouter_weights = [0.5, 0.5, 0.5]')
    assert said.startswith("thunder.toml: router_weights: must add up to 1, not 1.5")
    assert "--router-weights" in complaint(tmp_path, {**BACKEND, "router_weights": "1"}, {})
    assert "number" in complaint(tmp_path, {**BACKEND, "router_weights": "a,b,c"}, {})


def test_kv_events_are_a_port_of_each_backend_or_an_endpoint(tmp_path: Path) -> None:
    flags = {"backend": ["http://a:1", "http://b:1"], "kv_events": "5557", "kv_events_replay": "5558"}
    settings = load_settings(flags, {})
    assert [one.endpoint(one.kv_events or "") for one in settings.backend] == ["tcp://a:5557", "tcp://b:5557"]
    assert settings.backend[0].endpoint(settings.backend[0].kv_events_replay or "") == "tcp://a:5558"
    toml = (
        'backend = [{ url = "http://a:1", kv_events = 5557 }, { url = "http://a:2", kv_events = "ipc:///x" }]'
    )
    (tmp_path / "t.toml").write_text(toml)
    named = load_settings({}, {}, str(tmp_path / "t.toml")).backend
    assert [one.endpoint(one.kv_events or "") for one in named] == ["tcp://a:5557", "ipc:///x"]
    assert BackendSpec(url="http://[::1]:8000").endpoint("5557") == "tcp://[::1]:5557"


@pytest.mark.parametrize("wrong", ["0", "70000", "gpu:5557", "http://gpu:5557", "tcp://gpu", "-1"])
def test_what_is_no_endpoint_is_refused(tmp_path: Path, wrong: str) -> None:
    assert "tcp://gpu-1:5557" in complaint(tmp_path, {**BACKEND, "kv_events": wrong}, {})


def test_two_backends_of_one_host_cannot_publish_at_one_port(tmp_path: Path) -> None:
    flags = {"backend": ["http://a:1", "http://a:2"], "kv_events": "5557"}
    assert complaint(tmp_path, flags, {}).startswith(
        "--kv-events: backends on one host cannot all publish there"
    )
