#include "isolation/native/kernel_memory.h"

#include "test.h"

static void what_waits_in_netlink_sockets_is_added_up(void **state)
{
    static const struct str text =
        STR_INIT("sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n"
                 "0000000000000000 0   0          00000000 0        0        0     2        0        1029    \n"
                 "0000000000000000 0   1234       00000000 8388608  0        0     2        7        20345   \n"
                 "0000000000000000 0   4294963199 00000440 4096     2048     1     2        0        20346   \n");

    (void)state;
    assert_int_equal(kernel_memory_netlink(text), 8388608 + 4096 + 2048);
    assert_int_equal(kernel_memory_netlink(STR("")), 0);
}

static void what_udp_sockets_have_yet_to_send_is_added_up(void **state)
{
    static const struct str text = STR_INIT("   sl  local_address rem_address   st tx_queue rx_queue tr tm->when "
                                            "retrnsmt   uid  timeout inode ref pointer drops\n"
                                            "  123: 0100007F:A1B2 00000000:0000 07 00000000:00400000 00:00000000 "
                                            "00000000  1000        0 33 2 0000000000000000 0\n"
                                            "12345: 0100007F:A1B3 0100007F:0009 01 0000FA00:00000000 00:00000000 "
                                            "00000000  1000        0 34 2 0000000000000000 0\n"
                                            "    7: 00000000000000000000000001000000:A1B4 "
                                            "00000000000000000000000001000000:0009 01 00000010:00000000 00:00000000 "
                                            "00000000  1000        0 35 2 0000000000000000 0\n");

    (void)state;
    assert_int_equal(kernel_memory_udp(text), 0xfa00 + 0x10); /* what was received is charged elsewhere */
    assert_int_equal(kernel_memory_udp(STR("")), 0);
}

static void all_sockets_of_a_sandbox_are_counted_but_those_of_egress(void **state)
{
    (void)state;
    assert_int_equal(kernel_memory_sockets(STR("sockets: used 8193\nTCP: inuse 0 orphan 0 tw 0 alloc 3 mem 0\n")),
                     8193);
    assert_int_equal(kernel_memory_sockets(STR("sockets: used 8193\nTCP: inuse 100 orphan 0 tw 0 alloc 3 mem 0\n")),
                     8093);
    assert_int_equal(kernel_memory_sockets(STR("sockets: used 8193\nTCP: inuse 8000 orphan 0 tw 0 alloc 3 mem 0\n")),
                     8193 - LIMIT_EGRESS_FLOWS);
    assert_int_equal(kernel_memory_sockets(STR("sockets: used 8193\nUDP: inuse 8000 mem 0\n")), 8193);
    assert_int_equal(kernel_memory_sockets(STR("sockets: used 7")), 7);
    assert_int_equal(kernel_memory_sockets(STR("TCP: inuse 1\nsockets: used 7\n")), 0);
    assert_int_equal(kernel_memory_sockets(STR("")), 0);
}

static void the_kernels_part_is_what_nobody_else_has(void **state)
{
    static const struct str text =
        STR_INIT("MemTotal:       1000 kB\nMemFree:         400 kB\nMemAvailable:    700 kB\n"
                 "Buffers:          10 kB\nCached:          200 kB\nSwapCached:        1 kB\n"
                 "AnonPages:       100 kB\nShmem:            50 kB\nSReclaimable:     39 kB\n"
                 "SUnreclaim:      150 kB\nHugePages_Total:       0\n");
    struct kernel_part part;

    (void)state;
    kernel_memory_of(text, &part);
    assert_int_equal(part.held_bytes, 250 << 10);
    assert_int_equal(part.named_bytes, 150 << 10);
    assert_int_equal(part.reclaimable_bytes, 39 << 10);
    assert_int_equal(part.total_bytes, 1000 << 10);
    kernel_memory_of(STR("MemFree: 1 kB\n"), &part);
    assert_int_equal(part.held_bytes, 0);
    kernel_memory_of(STR(""), &part);
    assert_int_equal(part.held_bytes, 0);
}

static void a_smaller_sandbox_may_have_fewer_sockets(void **state)
{
    (void)state;
    assert_int_equal(kernel_memory_sockets_max(64ull << 20), 1536);
    assert_int_equal(kernel_memory_sockets_max(512ull << 20), 4096);
    assert_int_equal(kernel_memory_sockets_max(1ull << 30), 8192);
    assert_int_equal(kernel_memory_sockets_max(64ull << 30), 8192);
}

static void free_pages_of_each_processor_are_not_the_kernels(void **state)
{
    static const struct str text = STR_INIT("Node 0, zone    DMA32\n  per-node stats\n      nr_inactive_anon 208408\n"
                                            "  pagesets\n    cpu: 0\n              count:    83974\n"
                                            "              high:     86908\n    cpu: 1\n              count:    26\n");

    (void)state;
    assert_int_equal(kernel_memory_set_aside(text), 84000);
    assert_int_equal(kernel_memory_set_aside(STR("")), 0);
}

static void a_smaller_sandbox_may_have_fewer_files_open(void **state)
{
    (void)state;
    assert_int_equal(kernel_memory_files_max(64ull << 20), 16384);
    assert_int_equal(kernel_memory_files_max(1ull << 30), 131072);
    assert_int_equal(kernel_memory_files_max(64ull << 30), 262144);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_smaller_sandbox_may_have_fewer_sockets),
        CASE(a_smaller_sandbox_may_have_fewer_files_open),
        CASE(what_waits_in_netlink_sockets_is_added_up),
        CASE(what_udp_sockets_have_yet_to_send_is_added_up),
        CASE(all_sockets_of_a_sandbox_are_counted_but_those_of_egress),
        CASE(free_pages_of_each_processor_are_not_the_kernels),
        CASE(the_kernels_part_is_what_nobody_else_has),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
