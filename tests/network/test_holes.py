"""Each protection, switched off, makes at least one test fail. So none of those tests passes by accident.

The server must be from a build with -Dtest_holes=true (build-asan is one); CLOISTER_TEST_HOLE names the protection.
"""

import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as xml

import pytest

from server import ROOT, TEST_DATA, build_dir

HERE = pathlib.Path(__file__).resolve().parent
SWITCH = "CLOISTER_TEST_HOLE"

# The protection, as the source names it, and the tests that must notice. With the hole open all of them fail.
HOLES = [
    ("mail port", ["test_rules.py::test_refused[mail port 25 is refused]"]),
    (
        "range that the operator denies",
        [
            "test_rules.py::test_what_the_operator_denies_is_refused_whatever_is_allowed[two]",
            "test_rules.py::test_what_the_operator_denies_is_refused_whatever_is_allowed[two_six]",
            "test_rules.py::test_a_name_does_not_lead_to_what_the_operator_denies",
        ],
    ),
    (
        "address of the host",
        [
            "test_rules.py::test_refused[the machine's public address is refused]",
            "test_bypass.py::test_services_on_the_machine_are_refused",
            "test_bypass.py::test_a_new_address_of_the_machine_is_refused_at_once",
        ],
    ),
    (
        "address that is not public",
        [
            "test_rules.py::test_refused[metadata is not public and is refused]",
            "test_rules.py::test_refused[nat64_ten is not public and is refused]",
            "test_names.py::test_an_allowed_name_does_not_lead_to_a_private_address",
            "test_names.py::test_rebinding_never_reaches_the_private_address",
        ],
    ),
    (
        "internet access is off",
        [
            "test_rules.py::test_refused[no internet access refuses a public address]",
            "test_dns.py::test_internet_off_answers_at_once_and_asks_nobody",
        ],
    ),
    (
        "denied range",
        [
            "test_rules.py::test_refused[an address in a denied range is refused]",
            "test_names.py::test_a_hello_without_a_name_is_refused",
        ],
    ),
    ("name that is not allowed", ["test_names.py::test_only_allowed_names_are_looked_up"]),
    ("name of a private network", ["test_names.py::test_names_of_private_networks_are_not_asked_for"]),
    (
        "ports of names inside",
        ["test_inside.py::test_its_other_ports_are_refused_and_the_log_says_so[443]"],
    ),
    ("names inside are not asked for", ["test_inside.py::test_the_name_servers_cannot_lead_it_elsewhere"]),
    (
        "a name decides where",
        [
            "test_names.py::test_sni_of_an_allowed_name_leads_to_that_name_and_not_to_the_address_that_was_dialled",
            "test_names.py::test_host_of_an_allowed_name_leads_to_that_name_and_not_to_the_address_that_was_dialled",
        ],
    ),
    ("a new policy cuts", ["test_update.py::test_it_cuts_what_is_no_longer_allowed_and_nothing_else"]),
    ("a refusal resets", ["test_rules.py::test_refused[0.0.0.0/0 denies everything]"]),
    ("only what was diverted", ["test_bypass.py::test_the_listening_sockets_themselves_lead_nowhere"]),
    ("connections of a sandbox", ["test_connections.py::test_ten_thousand_connections_of_one_sandbox_are_capped_and_others_go_on"]),
    ("what is taken in of a sandbox", ["test_connections.py::test_a_storm_of_connections_is_accepted_at_a_rate_and_others_go_on"]),
    ("questions of a sandbox", ["test_dns.py::test_a_tunnel_through_dns_is_limited"]),
    ("answers are public", ["test_names.py::test_addresses_that_are_not_public_are_left_out_of_answers[private.test]"]),
    (
        "the proxy is the only way",
        [
            "test_proxy.py::test_a_connection_goes_through_the_proxy_by_address",
            "test_proxy.py::test_a_wrong_password_fails_closed_and_the_log_says_why",
        ],
    ),
    ("address of the proxy", ["test_proxy.py::test_a_proxy_at_a_private_address_is_not_dialed"]),
    ("hosts are verified", ["test_headers.py::test_a_host_that_cannot_be_verified_does_not_get_the_header"]),
    ("TLS servers are verified", ["test_proxy.py::test_a_proxy_that_cannot_be_verified_gets_nothing[{'enabled': True}]"]),
    ("a request is for its host", ["test_headers.py::test_a_request_for_another_host_on_the_same_connection_is_refused"]),
    ("nothing but TCP and DNS", ["test_bypass.py::test_udp_fails_at_once[198.51.100.10-9999]"]),
]


def has_holes():
    return SWITCH.encode() in (build_dir() / "cloister").read_bytes()


@pytest.mark.parametrize("hole, tests", HOLES, ids=[row[0] for row in HOLES])
def test_a_protection_that_is_off_is_noticed(hole, tests, tmp_path):
    if not has_holes():
        pytest.skip("this build has no test holes: meson configure BUILD -Dtest_holes=true")
    report = tmp_path / "report.xml"
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *tests],
        cwd=HERE,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        env={
            **os.environ,
            SWITCH: hole,
            "CLOISTER_TEST_DATA": str(TEST_DATA.with_name(f"{TEST_DATA.name}-holes")),
            "CLOISTER_TEST_PATIENCE_S": "3",  # what is waited for here never comes
        },
    )
    suite = next(xml.parse(report).getroot().iter("testsuite"))
    counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": len(tests), "failures": len(tests), "errors": 0, "skipped": 0}, result.stdout[-3000:]


def test_a_release_build_has_no_trace_of_it():
    program = ROOT / "build" / "cloister"
    if not program.exists():
        pytest.skip("there is no release build: make")
    assert SWITCH.encode() not in program.read_bytes()
