/* Which addresses are this machine's, in a network namespace of the test's own. Root. */
#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/fd.h"
#include "egress/sockets.h"
#include "test.h"

/* As SIOCSIFADDR of IPv6 wants it; the kernel's header does not go together with libc's. */
struct v6_request {
    struct in6_addr address;
    uint32_t prefix;
    int index;
};

static void set_v4(int fd, const char *name, unsigned long what, const char *address)
{
    struct ifreq request = { 0 };
    struct sockaddr_in at = { .sin_family = AF_INET };

    assert_int_equal(inet_pton(AF_INET, address, &at.sin_addr), 1);
    memcpy(request.ifr_name, name, strlen(name) + 1);
    memcpy(&request.ifr_addr, &at, sizeof at);
    assert_int_equal(ioctl(fd, what, &request), 0);
}

static int enter_namespace(void **state)
{
    struct ifreq up = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
    struct v6_request v6 = { .prefix = 64 };

    (void)state;
    assert_int_equal(unshare(CLONE_NEWNET), 0);
    auto_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    auto_close int fd6 = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &up), 0);
    set_v4(fd, "lo:1", SIOCSIFADDR, "198.51.100.1");
    set_v4(fd, "lo:1", SIOCSIFNETMASK, "255.255.255.0");
    v6.index = (int)if_nametoindex("lo");
    assert_int_equal(inet_pton(AF_INET6, "2001:db8:1::1", &v6.address), 1);
    assert_int_equal(ioctl(fd6, SIOCSIFADDR, &v6), 0);
    return 0;
}

static bool is_local(const struct host_probe *probe, const char *text)
{
    struct net_address address;

    assert_true(net_address_parse(str_from(text), &address));
    return host_probe_is_local(probe, &address);
}

static void ranges_on_loopback_are_this_machine(void **state)
{
    static const char *const ours[] = { "127.0.0.1",      "127.9.9.9", "198.51.100.1", "198.51.100.77",
                                        "198.51.100.255", "0.0.0.0",   "::1",          "2001:db8:1::1" };
    static const char *const others[] = { "198.51.101.1", "203.0.113.7", "2001:db8:2::1" };
    struct host_probe probe = host_probe_open();

    (void)state;
    /* The kernel adds the route of a new IPv6 address a moment later. */
    for (int i = 0; i < 500 && !is_local(&probe, "2001:db8:1::1"); i++)
        usleep(10000);
    for (size_t i = 0; i < COUNT_OF(ours); i++)
        if (!is_local(&probe, ours[i]))
            fail_msg("%s", ours[i]);
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (is_local(&probe, others[i]))
            fail_msg("%s", others[i]);
    host_probe_close(&probe);
}

static void an_address_without_a_route_has_none(void **state)
{
    struct host_probe probe = host_probe_open();
    struct net_address address;

    (void)state;
    assert_true(net_address_parse(STR("203.0.113.7"), &address));
    assert_false(host_probe_has_route(&probe, &address));
    assert_true(net_address_parse(STR("2001:db8:2::1"), &address));
    assert_false(host_probe_has_route(&probe, &address));
    assert_true(net_address_parse(STR("::1"), &address));
    assert_true(host_probe_has_route(&probe, &address));
    host_probe_close(&probe);
}

static void an_address_that_comes_later_counts_at_once(void **state)
{
    auto_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct host_probe probe = host_probe_open();

    (void)state;
    assert_false(is_local(&probe, "192.0.2.9"));
    set_v4(fd, "lo:2", SIOCSIFADDR, "192.0.2.9");
    assert_true(is_local(&probe, "192.0.2.9"));
    host_probe_close(&probe);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(ranges_on_loopback_are_this_machine),
        CASE(an_address_without_a_route_has_none),
        CASE(an_address_that_comes_later_counts_at_once),
    };

    return cmocka_run_group_tests(cases, enter_namespace, NULL);
}
