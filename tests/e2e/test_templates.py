"""Templates of one's own, as far as no build has to run: names, tags, uploads, lists, permissions, bad input."""

import concurrent.futures
import hashlib
import http.client
import re
import socket
import subprocess
import time
import urllib.parse
import uuid

import pytest
from e2b import Template
from server import build_dir, wait_for

TEAM = "makers"
FORMS = {"id": re.compile(r"[a-z0-9]{20}"), "build": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")}
NO_BUILD = "00000000-0000-0000-0000-000000000000"
SOME_BUILD = "00000000-0000-4000-8000-000000000000"


def quote(ref):
    return urllib.parse.quote(ref, safe="")


@pytest.fixture
def name(server):
    """A name that no other test uses; every template that begins with it is deleted afterwards."""
    prefix = f"e2e-{uuid.uuid4().hex[:12]}"
    yield prefix
    for row in server.api("GET", "/templates").json:
        if any(alias.startswith(prefix) for alias in row["aliases"]):
            server.api("DELETE", f"/templates/{row['templateID']}")


@pytest.fixture
def other_key(server):
    def cli(*words):
        command = [str(build_dir() / "cloister"), *words, "--data", str(server.data)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    cli("team", "delete", TEAM, "--force")
    cli("team", "create", TEAM)
    yield cli("key", "create", "ci", "--team", TEAM)
    cli("team", "delete", TEAM, "--force")


def ask(server, key, method, path, body=None):
    return server.call(method, path, body, {"X-API-Key": key})


def register(server, name, **more):
    answer = server.api("POST", "/v3/templates", {"name": name, **more})
    assert answer.status == 202, answer
    return answer.json


def put(url, body, headers=None):
    """As the SDKs do: no key, no Content-Type, no redirects."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    try:
        connection.putrequest("PUT", f"{parts.path}?{parts.query}")
        for field, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            connection.putheader(field, value)
        connection.endheaders()
        connection.send(body)
        response = connection.getresponse()
        return response.status, response.read(), response.getheader("Content-Length")
    finally:
        connection.close()


def link(server, template_id, digest):
    answer = server.api("GET", f"/templates/{template_id}/files/{digest}")
    assert answer.status == 201, answer
    return answer.json


# ---- names ----


def test_a_name_is_registered_and_can_be_seen_at_once(server, name):
    first = register(server, f" {name.upper()} ")
    assert FORMS["id"].fullmatch(first["templateID"]) and FORMS["build"].fullmatch(first["buildID"])
    assert first["aliases"] == [name] and first["names"] == [f"default/{name}"]
    assert first["tags"] == ["default"] and first["public"] is False
    second = register(server, f"default/{name}:v1", tags=["x", "v1"], cpuCount=1, memoryMB=512, minFreeDiskMb=0)
    assert second["templateID"] == first["templateID"] and second["buildID"] != first["buildID"]
    assert second["tags"] == ["v1", "x"]
    rows = [row for row in server.api("GET", "/templates").json if row["templateID"] == first["templateID"]]
    assert len(rows) == 1
    assert rows[0]["buildStatus"] == "waiting" and rows[0]["buildID"] == NO_BUILD and rows[0]["buildCount"] == 2
    detail = server.api("GET", f"/templates/{first['templateID']}").json
    assert [build["buildID"] for build in detail["builds"]] == [second["buildID"], first["buildID"]]
    status = server.api("GET", f"/templates/{first['templateID']}/builds/{first['buildID']}/status?logsOffset=0").json
    assert status == {
        "templateID": first["templateID"],
        "buildID": first["buildID"],
        "status": "waiting",
        "logs": [],
        "logEntries": [],
    }
    # A create needs a build that is ready.
    answer = server.api("POST", "/v2/sandboxes", {"templateID": name})
    assert answer.status == 404 and f"tag 'default' does not exist for template '{name}'" in answer.json["message"]


def test_a_newer_build_of_a_tag_takes_the_place_of_one_that_waits(server, name):
    first = register(server, name)
    other = register(server, f"{name}:other")
    register(server, name)
    path = f"/templates/{first['templateID']}/builds"
    status = server.api("GET", f"{path}/{first['buildID']}/status").json
    assert status["status"] == "error" and "superseded by a newer one" in status["reason"]["message"]
    assert server.api("GET", f"{path}/{other['buildID']}/status").json["status"] == "waiting"


BAD_ORDERS = [
    ({}, "Name is required"),
    ({"name": ""}, "Name is required"),
    ({"name": 5}, "validation error"),
    ({"name": "a b"}, "not a template reference"),
    ({"name": "a/b/c"}, "not a template reference"),
    ({"name": "../a"}, "not a template reference"),
    ({"name": "a:"}, "not a template reference"),
    ({"name": "ä"}, "not a template reference"),
    ({"name": "a" * 129}, "128"),
    ({"name": "elsewhere/a"}, "namespace"),
    ({"name": f"a:{SOME_BUILD}"}, "UUID"),
    ({"name": "a", "tags": [SOME_BUILD]}, "UUID"),
    ({"name": "a", "tags": ["b:c"]}, "not a tag"),
    ({"name": "a", "tags": "b"}, "tags"),
    ({"name": "a", "tags": [None]}, "tags"),
    ({"name": "a", "cpuCount": 0}, "CPU count must be at least 1"),
    ({"name": "a", "cpuCount": 33}, "CPU count must be at most 32"),
    ({"name": "a", "cpuCount": 3}, "CPU count must be 1 or an even number"),
    ({"name": "a", "cpuCount": 16}, "CPU count can't be higher than"),
    ({"name": "a", "memoryMB": 100}, "Memory must be at least 128 MiB"),
    ({"name": "a", "memoryMB": 1001}, "Memory must be divisible by 2"),
    ({"name": "a", "memoryMB": 1 << 20}, "Memory can't be higher than"),
    ({"name": "a", "minFreeDiskMb": -1}, "minFreeDiskMb"),
    ([], "validation error"),
]


@pytest.mark.parametrize("body,message", BAD_ORDERS)
def test_a_bad_registration_is_a_400(server, body, message):
    answer = server.api("POST", "/v3/templates", body)
    assert answer.status == 400 and answer.json["code"] == 400, answer
    assert message in answer.json["message"]


def test_an_id_is_no_name(server, name):
    made = register(server, name)
    assert server.api("POST", "/v3/templates", {"name": made["templateID"]}).status == 409


def test_exists(server, name):
    assert Template.exists("base")
    assert not Template.exists(name)
    made = register(server, name)
    assert Template.exists(name) and Template.exists(f"default/{name}") and Template.exists(made["templateID"])
    assert not Template.exists(f"{name}:default")  # no build of it is ready
    assert server.api("GET", f"/templates/aliases/{name}").json == {"templateID": made["templateID"], "public": False}
    for ref, status in ((f"other/{name}", 400), ("a b", 400), (f"{name}-nope", 404), (f"{name}:v1", 404)):
        assert server.api("GET", f"/templates/aliases/{quote(ref)}").status == status, ref
    assert server.api("DELETE", f"/templates/{name}").status == 204
    assert not Template.exists(name)
    assert server.api("DELETE", f"/templates/{name}").status == 404
    again = register(server, name)
    assert again["templateID"] != made["templateID"]


def test_pages(server, name):
    wanted = [register(server, f"{name}-{i}")["templateID"] for i in range(5)]
    seen, token, pages = [], "", 0
    while token is not None:
        answer = server.api("GET", f"/v2/templates?limit=2{token and '&nextToken='}{token}")
        assert answer.status == 200 and 1 <= len(answer.json) <= 2, answer
        seen += [row["templateID"] for row in answer.json]
        token, pages = answer.headers.get("x-next-token"), pages + 1
    assert len(seen) == len(set(seen)) and pages == (len(seen) + 1) // 2
    assert [template for template in seen if template in wanted] == wanted[::-1]
    assert set(seen) == {row["templateID"] for row in server.api("GET", "/templates").json}
    for query in ("limit=0", "limit=101", "limit=x", "nextToken=x", "teamID=other"):
        assert server.api("GET", f"/v2/templates?{query}").status == 400, query
    defaults = server.api("GET", "/default-templates").json
    assert any("base" in row["aliases"] for row in defaults) and not {row["templateID"] for row in defaults} & set(wanted)


# ---- uploads ----


def test_an_upload_is_for_the_whole_team_and_can_be_repeated(server, name):
    made, twin = register(server, name), register(server, f"{name}-twin")
    data = b"x" * (3 << 20)
    digest = hashlib.sha256(data + name.encode()).hexdigest()
    first = link(server, made["templateID"], digest)
    assert first["present"] is False and first["url"].startswith(server.url + "/")
    assert put(first["url"], data) == (200, b"", "0")
    again = link(server, twin["templateID"], digest)
    assert again["present"] is True and again["url"]
    assert put(again["url"], b"shorter") == (200, b"", "0")
    files = [path for path in (server.data / "store" / "uploads").iterdir() if path.name.endswith(digest)]
    assert [path.read_bytes() for path in files] == [b"shorter"]
    # The server may be killed now.
    server.stop()
    server.start_when_free()
    assert link(server, made["templateID"], digest)["present"] is True


def test_a_recipe_with_many_archives_uploads_them_all_at_once(server, name):
    """More than are read at once: the SDKs try each only once, so the others wait."""
    made = register(server, name)
    digests = [hashlib.sha256(f"{name}{i}".encode()).hexdigest() for i in range(60)]
    urls = [link(server, made["templateID"], digest)["url"] for digest in digests]
    with concurrent.futures.ThreadPoolExecutor(len(urls)) as pool:
        assert set(pool.map(lambda url: put(url, b"z" * 700001)[0], urls)) == {200}
    assert all(link(server, made["templateID"], digest)["present"] for digest in digests)


def test_a_link_opens_nothing_else(server, name, other_key):
    made = register(server, name)
    digest = hashlib.sha256(name.encode()).hexdigest()
    url = link(server, made["templateID"], digest)["url"]
    other = digest[::-1]
    assert put(url.replace(digest, other), b"x")[0] == 403
    assert put(url.replace("expires=", "expires=9"), b"x")[0] == 403
    assert put(url.split("&token=")[0], b"x")[0] == 403
    assert put(url.split("?")[0], b"x", {"X-API-Key": server.key})[0] == 403
    assert put(url, b"x" * 10, {"Content-Length": "99999999999"})[0] == 413
    for digest_or_path in ("abc", "A" * 64, quote("../../../etc/passwd")):
        answer = server.api("GET", f"/templates/{made['templateID']}/files/{digest_or_path}")
        assert answer.status == 400 and answer.json["message"] == "Invalid files hash"
    assert ask(server, other_key, "GET", f"/templates/{made['templateID']}/files/{digest}").status == 404
    assert server.api("GET", f"/templates/{'a' * 20}/files/{digest}").status == 404
    assert link(server, made["templateID"], digest)["present"] is False


def test_an_upload_that_is_cut_short_leaves_nothing(server, name):
    made = register(server, name)
    digest = hashlib.sha256(name.encode()).hexdigest()
    parts = urllib.parse.urlsplit(link(server, made["templateID"], digest)["url"])
    head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    uploads = server.data / "store" / "uploads"
    before = set(uploads.iterdir())
    with socket.create_connection((parts.hostname, parts.port)) as client:
        client.sendall(f"{head}Content-Length: 1000000\r\n\r\n".encode() + b"y" * 500000)
        assert wait_for(lambda: set(uploads.iterdir()) - before)  # it is being written
    assert wait_for(lambda: set(uploads.iterdir()) <= before)
    with socket.create_connection((parts.hostname, parts.port)) as client:
        client.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n1\r\ny\r\n0\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 411 ")
    assert link(server, made["templateID"], digest)["present"] is False


def test_a_link_follows_the_proxy_in_front(server, name):
    made = register(server, name)
    path = f"/templates/{made['templateID']}/files/{'a' * 64}"
    forwarded = {"X-Forwarded-Host": "api.example.org", "X-Forwarded-Proto": "https"}
    assert server.api("GET", path, None, forwarded).json["url"].startswith("https://api.example.org/template-files/")


# ---- start, as far as it is refused ----


def test_bad_starts(server, name, other_key):
    made = register(server, name)
    path = f"/v2/templates/{made['templateID']}/builds/{made['buildID']}"
    for body in (
        [],
        {"fromImage": 1},
        {"fromImage": "a", "steps": {}},
        {"fromImage": "a", "steps": [{"args": []}]},
        {"fromImage": "a", "steps": [{"type": "RUN", "args": [1]}]},
        {"fromImage": "a", "steps": [{"type": "RUN"}] * 1001},
        {"fromImage": "a", "fromImageRegistry": {"type": "ftp"}},
    ):
        answer = server.api("POST", path, body)
        assert answer.status == 400 and "validation error" in answer.json["message"], (body, answer)
    source = {"fromImage": "debian:stable"}
    assert server.api("POST", path.rsplit("/", 1)[0] + "/abc", source).status == 400
    assert server.api("POST", path.rsplit("/", 1)[0] + f"/{SOME_BUILD}", source).status == 404
    assert server.api("POST", path.replace(made["templateID"], "a" * 20), source).status == 404
    assert ask(server, other_key, "POST", path, source).status == 403
    assert server.api("POST", path, b'{"fromImage": ').status == 400


def test_questions_about_builds(server, name, other_key):
    made = register(server, name)
    path = f"/templates/{made['templateID']}/builds"
    mine = f"{path}/{made['buildID']}/status"
    for query in ("logsOffset=-1", "logsOffset=x", "limit=101", "level=loud"):
        assert server.api("GET", f"{mine}?{query}").status == 400, query
    answer = server.api("GET", f"{path}/abc/status")
    assert answer.status == 400 and answer.json["message"] == "Invalid build id"
    answer = server.api("GET", f"{path}/{SOME_BUILD}/status")
    assert answer.status == 400 and answer.json["message"] == f"Build '{SOME_BUILD}' not found"
    assert ask(server, other_key, "GET", mine).status == 403
    assert server.api("GET", f"{path}/{made['buildID']}/logs?direction=backward&limit=5").json == {"logs": []}
    assert server.api("GET", f"{path}/{made['buildID']}/logs?direction=up").status == 400


def test_the_first_way_to_build_is_gone(server):
    for path in ("/templates", "/v2/templates", "/templates/abc", f"/templates/abc/builds/{SOME_BUILD}"):
        answer = server.call("POST", path, {"dockerfile": "FROM x"}, {"Authorization": "Bearer sk_e2b_x"})
        assert answer.status == 410 and "template create" in answer.json["message"], path


# ---- tags ----


def test_bad_tags(server, name, other_key):
    made = register(server, name)
    for target, tags, status in (
        (name, [], 400),
        (name, [":invalid-tag"], 400),
        (name, ["name:"], 400),
        (name, [SOME_BUILD], 400),
        (f"{name}:", ["x"], 400),
        ("", ["x"], 400),
        (f"other/{name}", ["x"], 400),
        (f"{name}-nope", ["x"], 404),
        (name, ["x"], 404),  # it has no ready build
        (f"{name}:{made['buildID']}", ["x"], 404),
        ("base", ["x"], 403),
    ):
        answer = server.api("POST", "/templates/tags", {"target": target, "tags": tags})
        assert answer.status == status, (target, tags, answer)
    for named, tags, status in (
        (name, [], 400),
        (name, ["default"], 400),
        (f"{name}:v1", ["x"], 400),
        (f"{name}-nope", ["x"], 404),
        ("base", ["x"], 403),
        (name, ["x"], 204),
    ):
        answer = server.api("DELETE", "/templates/tags", {"name": named, "tags": tags})
        assert answer.status == status, (named, tags, answer)
    assert server.api("GET", f"/templates/{name}/tags").json == []
    assert server.api("GET", f"/templates/{name}/tags/count").json == {"total": 0}
    assert server.api("GET", f"/templates/{name}/tags/exists?tag=V1").json == {"exists": False, "normalizedTag": "v1"}
    assert server.api("GET", f"/templates/{name}/tags/groups").json == {"tags": [], "nextCursor": None}
    assert server.api("GET", f"/templates/{name}/tags/v1/assignments").json == {"data": [], "nextCursor": None}
    assert server.api("GET", f"/templates/{name}/tags/exists").status == 400
    body = {"target": made["templateID"], "tags": ["x"]}
    assert ask(server, other_key, "POST", "/templates/tags", body).status == 403
    assert ask(server, other_key, "GET", f"/templates/{name}/tags").status == 404


def test_the_sdk_reports_what_is_wrong_with_tags(server, name):
    register(server, name)
    with pytest.raises(Exception, match="404"):
        Template.assign_tags(f"{name}:default", "v1")
    with pytest.raises(Exception, match="400"):
        Template.remove_tags(name, "default")
    Template.remove_tags(name, ["never"])
    assert Template.get_tags(name) == []


# ---- others ----


def test_another_team_can_neither_see_nor_change(server, name, other_key):
    made = register(server, name)
    by_id, by_name = f"/templates/{made['templateID']}", f"/templates/{name}"
    assert all(row["templateID"] != made["templateID"] for row in ask(server, other_key, "GET", "/templates").json)
    for method, path, body, status in (
        ("GET", by_id, None, 403),
        ("GET", by_name, None, 404),
        ("GET", f"/templates/aliases/{made['templateID']}", None, 403),
        ("GET", f"/templates/aliases/{name}", None, 404),
        ("DELETE", by_id, None, 403),
        ("DELETE", by_name, None, 404),
        ("DELETE", f"/templates/{quote(f'default/{name}')}", None, 403),
        ("PATCH", f"/v2{by_id}", {"public": True}, 403),
        ("PATCH", f"/v2{by_name}", {"public": True}, 404),
        ("PATCH", by_id, {"public": True}, 403),
        ("POST", "/v2/sandboxes", {"templateID": made["templateID"]}, 403),
        ("POST", "/v2/sandboxes", {"templateID": name}, 404),
        ("POST", "/v2/sandboxes", {"templateID": f"default/{name}"}, 404),
    ):
        answer = ask(server, other_key, method, path, body)
        assert answer.status == status, (method, path, answer)
    # The same name is free there.
    theirs = ask(server, other_key, "POST", "/v3/templates", {"name": name})
    assert theirs.status == 202 and theirs.json["names"] == [f"{TEAM}/{name}"]
    assert theirs.json["templateID"] != made["templateID"]
    # A public one exists for others, and is still not theirs.
    assert server.api("PATCH", f"/v2{by_id}", {"public": True}).json == {"names": [f"default/{name}"]}
    assert ask(server, other_key, "GET", f"/templates/aliases/{made['templateID']}").json["public"] is True
    assert ask(server, other_key, "DELETE", by_id).status == 403
    assert server.api("PATCH", f"/v2{by_name}", {}).status == 200
    answer = server.api("PATCH", by_id, {"public": False})
    assert answer.status == 200 and answer.body == b"null"
    assert ask(server, other_key, "GET", f"/templates/aliases/{made['templateID']}").status == 403


def test_only_the_operator_gives_a_name_to_all_teams(server, name, other_key):
    """Else whoever comes first has `node`, and the sandboxes that others make of it."""
    made = register(server, name)
    by_alias = f"/templates/aliases/{name}"
    answer = server.api("PATCH", f"/templates/{name}", {"public": True})  # the call of older clients
    assert answer.status == 200 and answer.body == b"null"
    assert server.api("GET", by_alias).json == {"templateID": made["templateID"], "public": True}
    assert ask(server, other_key, "GET", f"/templates/aliases/{made['templateID']}").json["public"] is True
    assert ask(server, other_key, "GET", by_alias).status == 404
    assert ask(server, other_key, "POST", "/v2/sandboxes", {"templateID": name}).status == 404
    token = {"X-Admin-Token": (server.data / "admin-token").read_text().strip()}
    answer = server.call("PATCH", f"/templates/{name}", {"public": True}, token)
    assert answer.status == 200 and answer.body == b"null"
    assert ask(server, other_key, "GET", by_alias).json == {"templateID": made["templateID"], "public": True}
    # Whoever has the template can take it back, with its names.
    assert server.api("PATCH", f"/templates/{name}", {"public": False}).status == 200
    assert ask(server, other_key, "GET", by_alias).status == 404


def test_what_the_operator_has_made_stays(server):
    for method, path, body in (
        ("DELETE", "/templates/base", None),
        ("PATCH", "/v2/templates/base", {"public": False}),
        ("PATCH", "/templates/base", {"public": False}),
    ):
        answer = server.api(method, path, body)
        assert answer.status == 403 and "operator" in answer.json["message"], (method, answer)
    assert Template.exists("base")


def test_a_snapshot_is_a_template_and_in_no_list(server, name, made):
    sandbox = server.create()
    made.append(sandbox["sandboxID"])
    answer = server.api("POST", f"/sandboxes/{sandbox['sandboxID']}/snapshots", {"name": f"{name}:v2", "memory": False})
    assert answer.status == 201, answer
    try:
        assert Template.exists(name) and Template.exists(f"{name}:v2") and not Template.exists(f"{name}:v3")
        assert [row["tag"] for row in server.api("GET", f"/templates/{name}/tags").json] == ["v2"]
        assert all(name not in row["aliases"] for row in server.api("GET", "/templates").json)
        assert server.api("POST", "/v3/templates", {"name": name}).status == 403
    finally:
        assert server.api("DELETE", f"/templates/{name}").status == 204
    assert register(server, name)["aliases"] == [name]
    answer = server.api("POST", f"/sandboxes/{sandbox['sandboxID']}/snapshots", {"name": name, "memory": False})
    assert answer.status == 400 and "name of a template" in answer.json["message"]


def test_names_and_builds_survive_a_kill(server, name):
    made = register(server, name, tags=["v1"])
    server.process.kill()
    server.process.wait()
    time.sleep(0.2)
    server.start_when_free()
    assert Template.exists(name)
    path = f"/templates/{made['templateID']}/builds/{made['buildID']}/status"
    assert server.api("GET", path).json["status"] == "waiting"
    assert server.api("GET", f"/templates/{made['templateID']}").json["buildCount"] == 1
