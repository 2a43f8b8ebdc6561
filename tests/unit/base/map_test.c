#include "base/map.h"

#include <stdio.h>
#include <stdlib.h>

#include "test.h"

static void a_key_that_was_put_is_found_until_removed(void **state)
{
    (void)state;
    enum { COUNT = 2000 };
    static char keys[COUNT][16];
    struct map map;
    map_init(&map);
    for (int i = 0; i < COUNT; i++) {
        snprintf(keys[i], sizeof keys[i], "key-%d", i);
        assert_null(map_put(&map, str_from(keys[i]), keys[i]));
    }
    for (int i = 0; i < COUNT; i += 3)
        assert_ptr_equal(map_remove(&map, str_from(keys[i])), keys[i]);
    for (int i = 0; i < COUNT; i++)
        assert_ptr_equal(map_get(&map, str_from(keys[i])), i % 3 ? keys[i] : NULL);
    size_t seen = 0, cursor = 0;
    while (map_next(&map, &cursor))
        seen++;
    assert_int_equal(seen, map.count);
    assert_null(map_remove(&map, STR("absent")));
    map_done(&map);
}

static void an_empty_key_is_a_key(void **state)
{
    (void)state;
    struct map map;
    int x;
    map_init(&map);
    assert_null(map_get(&map, STR("")));
    map_put(&map, (struct str){ NULL, 0 }, &x);
    assert_ptr_equal(map_get(&map, STR("")), &x);
    assert_ptr_equal(map_put(&map, STR(""), &map), &x);
    assert_int_equal(map.count, 1);
    map_done(&map);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_key_that_was_put_is_found_until_removed),
        CASE(an_empty_key_is_a_key),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
