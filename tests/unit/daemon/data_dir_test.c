#include "daemon/data_dir.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "test.h"

static char root[] = "/tmp/cloister-data-XXXXXX";

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static void missing_parents_are_made_and_guest_files_are_private(void **state)
{
    (void)state;
    char path[128];
    struct err err;
    struct stat st;
    snprintf(path, sizeof path, "%s/a/b/data", root);
    auto_close int fd = data_dir_open(path, &err);
    assert_true(fd >= 0);
    assert_int_equal(fstatat(fd, "sandboxes", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
}

static void secrets_are_made_once_and_read_afterwards(void **state)
{
    (void)state;
    struct err err;
    struct secret first = { 0 }, second = { 0 };
    struct stat st;
    auto_close int fd = data_dir_open(root, &err);
    assert_true(fd >= 0);
    assert_true(data_dir_api_key(fd, &first, &err));
    assert_true(data_dir_api_key(fd, &second, &err));
    assert_int_equal(first.len, 44);
    assert_true(secret_eq(&first, secret_reveal(&second)));
    assert_int_equal(fstatat(fd, "api-key", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_true(fd_replace_file(fd, "api-key", STR("garbage\n"), 0600, &err));
    assert_false(data_dir_api_key(fd, &second, &err));
    assert_non_null(strstr(err.message, "api-key is damaged"));
}

static void keys_of_mail_are_made_once_and_the_servers_is_not_replaced(void **state)
{
    (void)state;
    struct err err;
    struct secret server = { 0 }, inbox = { 0 }, token = { 0 }, again = { 0 };
    struct stat st;
    char path[128];
    snprintf(path, sizeof path, "%s/with-mail", root);
    auto_close int fd = data_dir_open(path, &err);
    assert_true(data_dir_mail_keys(fd, &server, &inbox, &token, &err));
    assert_true(data_dir_mail_keys(fd, &again, &inbox, &token, &err));
    assert_true(secret_eq(&again, secret_reveal(&server)));
    assert_true(str_starts(secret_reveal(&inbox), STR("mm_live_")) && inbox.len == 8 + 43);
    assert_true(str_starts(secret_reveal(&token), STR("lm_sk_live_")) && token.len == 11 + 43);
    assert_int_equal(fstatat(fd, "mail/server-key", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(fstatat(fd, "mail", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0711);
    /* Without inboxes a new key does no harm. A file is no inbox. */
    assert_int_equal(unlinkat(fd, "mail/server-key", 0), 0);
    auto_close int file = openat(fd, "mail/notes", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(file >= 0);
    assert_true(data_dir_mail_keys(fd, &again, &inbox, &token, &err));
    assert_int_equal(mkdirat(fd, "mail/01HZZZZZZZZZZZZZZZZZZZZZZ1", 0700), 0);
    assert_int_equal(unlinkat(fd, "mail/server-key", 0), 0);
    assert_false(data_dir_mail_keys(fd, &again, &inbox, &token, &err));
    assert_non_null(strstr(err.message, "mail/server-key is missing"));
    assert_int_equal(faccessat(fd, "mail/server-key", F_OK, 0), -1);
}

static void a_node_id_is_made_once_for_a_directory(void **state)
{
    (void)state;
    char path[128], first[LIMIT_ID_BYTES], second[LIMIT_ID_BYTES];
    struct err err;
    auto_close int fd = data_dir_open(root, &err);
    assert_true(data_dir_node_id(fd, first, &err));
    assert_true(data_dir_node_id(fd, second, &err));
    assert_int_equal(strlen(first), 20);
    assert_string_equal(first, second);
    snprintf(path, sizeof path, "%s/other", root);
    auto_close int other = data_dir_open(path, &err);
    assert_true(data_dir_node_id(other, second, &err));
    assert_string_not_equal(first, second);
    assert_true(fd_replace_file(fd, "node-id", STR("../../../../../../..\n"), 0600, &err));
    assert_false(data_dir_node_id(fd, second, &err));
    assert_non_null(strstr(err.message, "node-id is damaged"));
}

static void an_address_is_read_as_it_was_noted(void **state)
{
    (void)state;
    auto_free char *text = NULL;
    char address[32];
    size_t len;
    struct err err;
    auto_close int fd = data_dir_open(root, &err);
    assert_true(fd >= 0);
    assert_false(data_dir_noted_address(fd, address, sizeof address, &err));
    assert_int_equal(err.kind, ERR_NOT_FOUND);
    assert_true(data_dir_note_address(fd, "127.0.0.1:7070", "cloister.localhost:7070", false, &err));
    assert_true(fd_read_file(fd, "server", 100, &text, &len, &err));
    assert_string_equal(text, "127.0.0.1:7070\ncloister.localhost:7070\nmail off\n");
    assert_true(data_dir_note_address(fd, "127.0.0.1:7070", "cloister.localhost:7070", true, &err));
    assert_true(data_dir_noted_address(fd, address, sizeof address, &err));
    assert_string_equal(address, "127.0.0.1:7070");
    assert_false(data_dir_noted_address(fd, address, strlen(address), &err));
    assert_true(data_dir_noted_domain(fd, address, sizeof address, &err));
    assert_string_equal(address, "cloister.localhost:7070");
    assert_true(fd_replace_file(fd, "server", STR("\n"), 0644, &err));
    assert_false(data_dir_noted_address(fd, address, sizeof address, &err));
    assert_false(data_dir_noted_domain(fd, address, sizeof address, &err));
    assert_true(fd_replace_file(fd, "server", STR("127.0.0.1:7070\n"), 0644, &err)); /* of an older version */
    assert_false(data_dir_noted_domain(fd, address, sizeof address, &err));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(missing_parents_are_made_and_guest_files_are_private),
        CASE(secrets_are_made_once_and_read_afterwards),
        CASE(keys_of_mail_are_made_once_and_the_servers_is_not_replaced),
        CASE(a_node_id_is_made_once_for_a_directory),
        CASE(an_address_is_read_as_it_was_noted),
    };
    return cmocka_run_group_tests(cases, make_root, remove_root);
}
