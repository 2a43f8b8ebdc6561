#include "daemon/certificates.h"

#include <fcntl.h>
#include <ftw.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "daemon/sign_message.h"
#include "io/pump.h"
#include "io/test_certificate.h"
#include "io/tls_key.h"

static char dir[64], cert_path[80], key_path[80];
static int dir_fd;
static struct loop *loop;
static unsigned changes;

static void begin(void)
{
    hand_clock_start();
    (void)snprintf(dir, sizeof dir, "/tmp/certificates.XXXXXX");
    assert_non_null(mkdtemp(dir));
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)snprintf(cert_path, sizeof cert_path, "%s/cert.pem", dir);
    (void)snprintf(key_path, sizeof key_path, "%s/key.pem", dir);
    loop = loop_new();
    changes = 0;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void finish(void)
{
    loop_free(loop);
    close(dir_fd);
    (void)nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    hand_clock_end();
}

static X509 *x509_of(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *x509 = PEM_read_bio_X509(bio, NULL, NULL, NULL);

    BIO_free(bio);
    assert_non_null(x509);
    return x509;
}

static char *file_text(const char *name)
{
    char *text = NULL;
    size_t len;
    struct err err;

    assert_true(fd_read_file(dir_fd, name, 1 << 23, &text, &len, &err));
    return text;
}

/* What a strict client does with the certificate, for a name. The error, or X509_V_OK. */
static int verify(const char *chain, const char *ca, const char *name)
{
    X509 *leaf = x509_of(chain), *root = x509_of(ca);
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *context = X509_STORE_CTX_new();

    X509_STORE_add_cert(store, root);
    X509_STORE_set_flags(store, X509_V_FLAG_X509_STRICT);
    X509_STORE_set_purpose(store, X509_PURPOSE_SSL_SERVER);
    X509_STORE_CTX_init(context, store, leaf, NULL);
    X509_VERIFY_PARAM_set1_host(X509_STORE_CTX_get0_param(context), name, 0);
    X509_VERIFY_PARAM_set_hostflags(X509_STORE_CTX_get0_param(context), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    int result = X509_verify_cert(context) == 1 ? X509_V_OK : X509_STORE_CTX_get_error(context);
    X509_STORE_CTX_free(context);
    X509_STORE_free(store);
    X509_free(leaf);
    X509_free(root);
    return result;
}

static struct key_pair make(const char *name, bool *out_is_new)
{
    struct key_pair pair;
    struct err err;

    if (!authority_certificate(dir_fd, name, &pair, out_is_new, &err))
        fail_msg("%s", err_text(&err));
    return pair;
}

/* ---- the authority ---- */

static void the_certificate_is_one_that_strict_clients_accept(void **state)
{
    bool is_new;
    struct stat st;
    struct err err;

    (void)state;
    begin();
    auto_pair struct key_pair pair = make("", &is_new);
    auto_free char *ca = file_text("tls/ca.pem"), *bundle = file_text("tls/ca-bundle.pem");
    assert_true(is_new);
    assert_int_equal(verify(pair.chain, ca, "cloister.localhost"), X509_V_OK);
    assert_int_equal(verify(pair.chain, ca, "api.cloister.localhost"), X509_V_OK);
    assert_int_equal(verify(pair.chain, ca, "49999-i0abc.cloister.localhost"), X509_V_OK);
    assert_int_equal(verify(pair.chain, ca, "a.b.cloister.localhost"), X509_V_ERR_HOSTNAME_MISMATCH);
    assert_int_equal(verify(pair.chain, ca, "example.com"), X509_V_ERR_HOSTNAME_MISMATCH);
    assert_non_null(strstr(bundle, ca));
    struct tls_key *key = tls_key_read(str_from(pair.key), &err);
    assert_non_null(key);
    assert_true(tls_key_fits(key, str_from(pair.chain), &err));
    tls_key_free(key);
    assert_int_equal(fstatat(dir_fd, "tls/authority.pem", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(fstatat(dir_fd, "tls/ca-bundle.pem", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
    finish();
}

/* Takes the authority's own key to make a certificate for another name: clients must not accept it. */
static void the_authority_cannot_vouch_for_other_names(void **state)
{
    bool is_new;

    (void)state;
    begin();
    auto_pair struct key_pair pair = make("", &is_new);
    auto_free char *text = file_text("tls/authority.pem"), *ca = file_text("tls/ca.pem");
    BIO *bio = BIO_new_mem_buf(text, -1);
    X509 *authority = PEM_read_bio_X509(bio, NULL, NULL, NULL), *forged = x509_of(pair.chain);
    EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL);
    BIO_free(bio);
    assert_non_null(key);
    int at = X509_get_ext_by_NID(forged, NID_subject_alt_name, -1);
    X509_EXTENSION_free(X509_delete_ext(forged, at));
    X509_EXTENSION *alt = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, "DNS:bank.test");
    X509_add_ext(forged, alt, -1);
    X509_EXTENSION_free(alt);
    assert_true(X509_sign(forged, key, EVP_sha256()) > 0);
    bio = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(bio, forged);
    auto_free char *chain = test_pem_(bio);
    assert_int_equal(verify(chain, ca, "bank.test"), X509_V_ERR_PERMITTED_VIOLATION);
    X509_free(authority);
    X509_free(forged);
    EVP_PKEY_free(key);
    finish();
}

static void it_is_kept_until_the_names_change(void **state)
{
    bool is_new;

    (void)state;
    begin();
    auto_pair struct key_pair first = make("", &is_new);
    auto_free char *first_ca = file_text("tls/ca.pem");
    assert_int_equal(faccessat(dir_fd, "tls/ca.pem.new", F_OK, 0), -1); /* nothing lies beside what people copy */
    auto_pair struct key_pair again = make("cloister.localhost", &is_new);
    assert_false(is_new);
    assert_string_equal(first.chain, again.chain);
    assert_string_equal(first.key, again.key);

    auto_pair struct key_pair other = make("boxes.example.com", &is_new);
    auto_free char *other_ca = file_text("tls/ca.pem");
    assert_true(is_new);
    assert_string_not_equal(first_ca, other_ca);
    assert_int_equal(verify(other.chain, other_ca, "x.boxes.example.com"), X509_V_OK);
    assert_int_equal(verify(other.chain, other_ca, "x.cloister.localhost"), X509_V_OK);
    finish();
}

static void the_certificate_is_renewed_in_time_and_the_authority_kept(void **state)
{
    bool is_new;

    (void)state;
    begin();
    auto_pair struct key_pair first = make("", &is_new);
    auto_free char *ca = file_text("tls/ca.pem");
    hand_clock_add(UINT64_C(59) * 86400 * 1000);
    auto_pair struct key_pair same = make("", &is_new);
    assert_false(is_new);
    assert_string_equal(first.chain, same.chain);
    hand_clock_add(UINT64_C(2) * 86400 * 1000);
    auto_pair struct key_pair next = make("", &is_new);
    auto_free char *same_ca = file_text("tls/ca.pem");
    assert_true(is_new);
    assert_string_not_equal(first.chain, next.chain);
    assert_string_equal(ca, same_ca);
    hand_clock_add(UINT64_C(9) * 365 * 86400 * 1000);
    auto_pair struct key_pair last = make("", &is_new);
    auto_free char *last_ca = file_text("tls/ca.pem");
    assert_string_not_equal(ca, last_ca);
    assert_int_equal(verify(last.chain, last_ca, "cloister.localhost"), X509_V_ERR_CERT_NOT_YET_VALID);
    finish();
}

static void a_damaged_file_is_made_anew(void **state)
{
    bool is_new;
    struct err err;

    (void)state;
    begin();
    auto_pair struct key_pair first = make("", &is_new);
    auto_free char *text = file_text("tls/authority.pem");
    for (size_t cut = 1; cut < strlen(text); cut += strlen(text) / 5) {
        assert_true(fd_replace_file(dir_fd, "tls/authority.pem", str_of(text, cut), 0600, &err));
        auto_pair struct key_pair next = make("", &is_new);
        auto_free char *ca = file_text("tls/ca.pem");
        assert_true(is_new);
        assert_string_not_equal(first.chain, next.chain);
        assert_int_equal(verify(next.chain, ca, "cloister.localhost"), X509_V_OK);
    }
    finish();
}

static void a_host_is_taken_from_a_domain(void **state)
{
    static const struct {
        const char *domain, *host;
    } samples[] = {
        { "example.com", "example.com" },
        { "Boxes.Example.com:8443", "boxes.example.com" },
        { "localhost:7070", "" }, /* a wildcard below one label is refused by clients */
        { "127.0.0.1:7070", "" },
        { "[::1]:7070", "" },
        { "", "" },
        { "a..b", "" },
        { "-a.b", "" },
        { "a.b-", "" },
        { "a.b,DNS:bank.test", "" },
        { "a.b\nc.d", "" },
        { "*.a.b", "" },
    };
    char room[256];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(samples); i++) {
        authority_host(samples[i].domain, room, sizeof room);
        assert_string_equal(room, samples[i].host);
    }
}

/* ---- the operator's files ---- */

static void put(const char *path, const char *text)
{
    struct err err;

    assert_true(fd_replace_file(AT_FDCWD, path, str_from(text), 0600, &err));
}

static void on_changed(void *context)
{
    (void)context;
    changes++;
}

static struct certificates *open_given(struct err *err)
{
    return certificates_new(&(struct certificates_config){ .loop = loop,
                                                           .data_fd = dir_fd,
                                                           .domain = "a.test",
                                                           .cert_path = cert_path,
                                                           .key_path = key_path,
                                                           .changed = on_changed,
                                                           .look_ms = 10 },
                            err);
}

struct receiver {
    struct message_texts texts;
    unsigned count;
};

static bool on_event(void *context, enum message_type type, struct str payload, struct message_fds *fds,
                     struct err *err)
{
    struct receiver *receiver = context;

    assert_int_equal(type, MESSAGE_CERTIFICATE);
    receiver->count++;
    return message_texts_read(payload, fds, LIMIT_TLS_CHAIN_BYTES, &receiver->texts, err);
}

/* Has the certificates sent, and reads them as a role does. */
static void receive(struct certificates *all, bool keys, struct message_texts *out)
{
    static const struct channel_handlers handlers = { .event = on_event };
    struct receiver receiver = { 0 };
    int fds[2];
    struct err err;

    assert_true(channel_pair(fds, &err));
    struct channel *sender = channel_new(loop, fds[0], &(struct channel_handlers){ 0 }, NULL);
    struct channel *role = channel_new(loop, fds[1], &handlers, &receiver);
    if (keys)
        certificates_send_keys(all, sender);
    else
        certificates_send_chains(all, sender);
    PUMP_UNTIL(loop, receiver.count == 1);
    channel_free(sender);
    channel_free(role);
    pump_some(loop);
    *out = receiver.texts;
}

static void the_roles_get_their_halves(void **state)
{
    struct test_certificate made = test_certificate_make("P-256", "DNS:*.a.test");
    auto_texts struct message_texts keys = { 0 }, chains = { 0 };
    struct err err;

    (void)state;
    begin();
    put(cert_path, made.chain);
    put(key_path, made.key);
    struct certificates *all = open_given(&err);
    assert_non_null(all);
    assert_true(certificates_are_given(all));
    receive(all, true, &keys);
    receive(all, false, &chains);
    assert_int_equal(keys.count, 2);
    assert_int_equal(chains.count, 2);
    assert_string_equal(keys.at[0], made.key);
    assert_string_equal(chains.at[0], made.chain);
    assert_null(strstr(chains.at[0], "PRIVATE"));
    assert_null(strstr(chains.at[1], "PRIVATE"));
    message_texts_done(&chains);
    certificates_free(all);
    test_certificate_done(&made);
    finish();
}

static void changed_files_are_loaded_and_bad_ones_are_not(void **state)
{
    struct test_certificate first = test_certificate_make("P-256", "DNS:*.a.test");
    struct test_certificate second = test_certificate_make("RSA", "DNS:*.a.test");
    struct err err;

    (void)state;
    begin();
    put(cert_path, first.chain);
    put(key_path, first.key);
    struct certificates *all = open_given(&err);
    assert_non_null(all);
    pump_some(loop);
    assert_int_equal(changes, 0);

    /* A certificate without its key stays out; with it, both come in. */
    put(cert_path, second.chain);
    for (int i = 0; i < 5; i++)
        pump_some(loop);
    assert_int_equal(changes, 0);
    put(key_path, second.key);
    PUMP_UNTIL(loop, changes == 1);
    {
        auto_texts struct message_texts chains = { 0 };
        receive(all, false, &chains);
        assert_string_equal(chains.at[0], second.chain);
    }
    /* Files that vanish, or are no longer certificates. */
    assert_int_equal(unlink(cert_path), 0);
    for (int i = 0; i < 5; i++)
        pump_some(loop);
    put(cert_path, "nothing");
    for (int i = 0; i < 5; i++)
        pump_some(loop);
    assert_int_equal(changes, 1);
    {
        auto_texts struct message_texts chains = { 0 };
        receive(all, false, &chains);
        assert_string_equal(chains.at[0], second.chain);
    }
    put(cert_path, second.chain);
    PUMP_UNTIL(loop, changes == 2);
    certificates_free(all);
    test_certificate_done(&first);
    test_certificate_done(&second);
    finish();
}

/* In the message: the start of the server shows no more. */
static void assert_files_named(const struct err *err, const char *reason)
{
    char want[sizeof err->message];

    (void)snprintf(want, sizeof want, "certificate %s with key %s: %s", cert_path, key_path, reason);
    assert_string_equal(err->message, want);
}

static void a_reason_is_whole_after_long_paths(void **state)
{
    struct test_certificate first = test_certificate_make("P-256", "DNS:*.a.test");
    struct test_certificate second = test_certificate_make("P-256", "DNS:*.a.test");
    char path[256];
    struct key_pair pair;
    struct err err;

    (void)state;
    begin();
    put(cert_path, first.chain);
    put(key_path, second.key);
    (void)snprintf(path, sizeof path,
                   "////////////////////////////////////////////////////////////////////////////"
                   "////////////////////////////////////////////////////////////////////////%s",
                   key_path);
    assert_false(certificates_read(cert_path, path, "", &pair, &err));
    assert_non_null(strstr(err.message, cert_path));
    assert_non_null(strstr(err.message, ": the first certificate is not for this key"));
    test_certificate_done(&first);
    test_certificate_done(&second);
    finish();
}

static void bad_files_at_the_start_are_an_error(void **state)
{
    struct test_certificate first = test_certificate_make("P-256", "DNS:*.a.test");
    struct test_certificate second = test_certificate_make("P-256", "DNS:*.a.test");
    struct err err;

    (void)state;
    begin();
    assert_null(open_given(&err));
    assert_non_null(strstr(err_text(&err), cert_path));
    put(cert_path, first.chain);
    put(key_path, second.key);
    assert_null(open_given(&err));
    assert_files_named(&err, "the first certificate is not for this key");
    put(key_path, "nothing");
    assert_null(open_given(&err));
    assert_files_named(&err, "there is no private key in PEM without a passphrase");
    assert_null(certificates_new(&(struct certificates_config){ .loop = loop,
                                                                .data_fd = dir_fd,
                                                                .domain = "",
                                                                .cert_path = cert_path,
                                                                .key_path = "",
                                                                .changed = on_changed },
                                 &err));
    assert_non_null(strstr(err_text(&err), "belong together"));
    assert_false(certificates_check_paths("", key_path, &err) || certificates_check_paths(cert_path, "", &err));
    assert_non_null(strstr(err.message, "belong together"));
    assert_true(certificates_check_paths("", "", &err) && certificates_check_paths("a", "b", &err));
    test_certificate_done(&first);
    test_certificate_done(&second);
    finish();
}

/* Front uses the same code to serve them: a certificate that it cannot serve must not reach it. */
static void certificates_that_openssl_would_not_serve_are_refused(void **state)
{
    struct test_certificate weak = test_certificate_make("weak", "DNS:*.a.test");
    struct err err;

    (void)state;
    begin();
    put(cert_path, weak.chain);
    put(key_path, weak.key);
    assert_null(open_given(&err));
    assert_non_null(strstr(err_text(&err), "the certificate cannot be used"));
    test_certificate_done(&weak);
    finish();
}

/* ---- what front asks of signer ---- */

static void a_sign_request_is_whole_or_malformed(void **state)
{
    unsigned char signature[TLS_SIGNATURE_BYTES];
    struct tls_to_sign want = { .algorithm = TLS_ECDSA, .bytes = STR("01234567890123456789012345678901") }, got;
    auto_buf struct buf message = buf_make(NULL, SIGN_MESSAGE_BYTES), reply = buf_make(NULL, SIGN_MESSAGE_BYTES);
    size_t len;
    struct err err;

    (void)state;
    memset(want.key_id, 7, sizeof want.key_id);
    sign_request_pack(&message, &want);
    assert_true(sign_request_unpack(buf_str(&message), &got, &err));
    assert_memory_equal(got.key_id, want.key_id, TLS_KEY_ID_BYTES);
    assert_int_equal(got.algorithm, TLS_ECDSA);
    CHECK_STR(got.bytes, want.bytes);
    for (size_t cut = 0; cut < message.len; cut++)
        assert_false(sign_request_unpack(str_of(message.data, cut), &got, &err));
    message.data[4 + TLS_KEY_ID_BYTES] = TLS_ALGORITHM_END;
    assert_false(sign_request_unpack(buf_str(&message), &got, &err));
    message.data[4 + TLS_KEY_ID_BYTES] = 0;
    assert_false(sign_request_unpack(buf_str(&message), &got, &err));

    sign_reply_pack(&reply, STR("signature"));
    assert_true(sign_reply_unpack(buf_str(&reply), signature, &len, &err));
    CHECK_STR(str_of(signature, len), STR("signature"));
    for (size_t cut = 0; cut < reply.len; cut++)
        assert_false(sign_reply_unpack(str_of(reply.data, cut), signature, &len, &err));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(the_certificate_is_one_that_strict_clients_accept),
        CASE(the_authority_cannot_vouch_for_other_names),
        CASE(it_is_kept_until_the_names_change),
        CASE(the_certificate_is_renewed_in_time_and_the_authority_kept),
        CASE(a_damaged_file_is_made_anew),
        CASE(a_host_is_taken_from_a_domain),
        CASE(the_roles_get_their_halves),
        CASE(changed_files_are_loaded_and_bad_ones_are_not),
        CASE(bad_files_at_the_start_are_an_error),
        CASE(a_reason_is_whole_after_long_paths),
        CASE(certificates_that_openssl_would_not_serve_are_refused),
        CASE(a_sign_request_is_whole_or_malformed),
    };

    return cmocka_run_group_tests(cases, NULL, NULL);
}
