/* Every document that a registry sends, and an archive's list: all readers get all bytes. */
#include <stdlib.h>

#include "registry/manifest.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct str text = str_of(data, size), token, user, password;
    struct image_config config;
    struct saved_image saved;
    struct manifest manifest;
    struct descriptor chosen;
    enum document kind;
    struct arena arena;
    struct err err;

    arena_init(&arena);
    (void)document_kind(STR(""), text);
    (void)!index_choose(text, "amd64", STR(""), &arena, &chosen, &kind, &err);
    (void)!index_choose(text, "arm64", STR("latest"), &arena, &chosen, &kind, &err);
    if (oci_manifest_parse(text, &arena, &manifest, &err) &&
        (manifest.layer_count == 0 || manifest.layer_count > LIMIT_IMAGE_LAYERS ||
         manifest.size > LIMIT_UNPACKED_BYTES))
        abort();
    if (image_config_parse(text, "amd64", &arena, &config, &err) &&
        (config.diff_count == 0 || config.diff_count > LIMIT_IMAGE_LAYERS || config.env_count > LIMIT_IMAGE_ENVS))
        abort();
    if (token_parse(text, &arena, &token, &err) && (token.len == 0 || str_has_char(token, '\n')))
        abort();
    (void)!ecr_token_parse(text, &arena, &user, &password, &err);
    (void)registry_code_of(text);
    (void)!saved_image_choose(text, STR(""), &arena, &saved, &err);
    (void)!saved_image_choose(text, STR("x:1"), &arena, &saved, &err);
    arena_done(&arena);
    return 0;
}
