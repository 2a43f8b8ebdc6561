#include "registry/manifest.h"

#include <stdlib.h>

#include "base/encode.h"
#include "wire/json.h"

enum { NAMES_BYTES = 80 }; /* of a list of names in an error, which has little room */

static json_t *parse(struct str json, const char *what, struct err *err)
{
    struct err why;
    json_t *got =
        json.len > LIMIT_REGISTRY_JSON_BYTES ? NULL : json_parse_large(json, LIMIT_REGISTRY_JSON_VALUES, &why);

    if (!json_is_object(got)) {
        json_decref(got);
        (void)err_set(err, ERR_INVALID, "the registry's %s is not a JSON object, or too large", what);
        return NULL;
    }
    return got;
}

/* ---- kinds ---- */

static enum document kind_of_type(struct str type)
{
    struct str name;

    (void)str_cut(&type, ';', &name);
    name = str_trim(name);
    if (str_eq(name, STR("application/vnd.oci.image.index.v1+json")) ||
        str_eq(name, STR("application/vnd.docker.distribution.manifest.list.v2+json")))
        return DOCUMENT_INDEX;
    if (str_eq(name, STR("application/vnd.oci.image.manifest.v1+json")) ||
        str_eq(name, STR("application/vnd.docker.distribution.manifest.v2+json")))
        return DOCUMENT_MANIFEST;
    if (str_starts(name, STR("application/vnd.docker.distribution.manifest.v1")))
        return DOCUMENT_SCHEMA1;
    return DOCUMENT_UNKNOWN;
}

enum document document_kind(struct str content_type, struct str json)
{
    enum document kind = kind_of_type(content_type);
    struct str type = STR("");
    struct err err;

    if (kind != DOCUMENT_UNKNOWN)
        return kind;
    auto_json json_t *got = parse(json, "manifest", &err);
    if (!got)
        return DOCUMENT_UNKNOWN;
    if (json_take_str(got, "mediaType", JSON_OPTIONAL, &type, &err) && type.len)
        kind = kind_of_type(type);
    if (kind != DOCUMENT_UNKNOWN)
        return kind;
    return json_has(got, "manifests")                           ? DOCUMENT_INDEX
           : json_has(got, "fsLayers")                          ? DOCUMENT_SCHEMA1
           : json_has(got, "layers") && json_has(got, "config") ? DOCUMENT_MANIFEST
                                                                : DOCUMENT_UNKNOWN;
}

/* ---- descriptors ---- */

static bool take_descriptor(const json_t *json, struct arena *arena, struct descriptor *out, struct str *out_type,
                            struct err *err)
{
    struct str digest;
    int64_t size;
    struct err why;
    const json_t *urls = NULL;

    *out = (struct descriptor){ 0 };
    *out_type = STR("");
    if (!json_is_object(json) || !json_take_str(json, "digest", JSON_REQUIRED, &digest, &why) ||
        !json_take_int(json, "size", JSON_REQUIRED, 0, INT64_MAX, &size, &why) ||
        !json_take_str(json, "mediaType", JSON_OPTIONAL, out_type, &why) ||
        !json_take_array(json, "urls", JSON_OPTIONAL, &urls, &why))
        return err_set(err, ERR_INVALID, "the image's manifest has an entry without digest or size");
    if (!digest_parse(digest, out->hex))
        return err_set(err, ERR_INVALID, "the image's manifest has a digest that is not sha256:… : '%.*s'",
                       (int)MIN(digest.len, (size_t)40), digest.at);
    out->size = (uint64_t)size;
    if (json_is_string(json_array_get(urls, 0)))
        out->url = arena_copy(arena, json_str(json_array_get(urls, 0)));
    return true;
}

/* ---- indexes ---- */

static bool text_is(const json_t *object, const char *name, struct str want)
{
    const json_t *value = json_object_get(object, name);

    return json_is_string(value) && str_eq(json_str(value), want);
}

static bool is_attestation(const json_t *entry)
{
    return text_is(json_object_get(entry, "annotations"), "vnd.docker.reference.type", STR("attestation-manifest"));
}

/* 0: not for us. An entry without a platform is one whose configuration says it. */
static int fit(const json_t *entry, const char *architecture)
{
    const json_t *platform = json_object_get(entry, "platform");
    const json_t *variant = json_object_get(platform, "variant");

    if (is_attestation(entry))
        return 0;
    if (!json_is_object(platform))
        return 1;
    if (!text_is(platform, "os", STR("linux")) || !text_is(platform, "architecture", str_from(architecture)))
        return 0;
    if (!json_is_string(variant) || json_string_length(variant) == 0)
        return 4;
    return strcmp(architecture, "arm64") == 0 && strcmp(json_string_value(variant), "v8") == 0 ? 4 : 2;
}

/* Skopeo and umoci write the tag alone, others the whole name. */
static bool has_name(const json_t *entry, struct str name)
{
    const json_t *annotations = json_object_get(entry, "annotations");
    const json_t *noted = json_object_get(annotations, "org.opencontainers.image.ref.name");
    struct str text = json_is_string(noted) ? json_str(noted) : STR("");

    return text.len && (str_eq(text, name) ||
                        (text.len > name.len && str_ends(text, name) && text.at[text.len - name.len - 1] == ':'));
}

static bool is_visible(struct str text)
{
    for (size_t i = 0; i < text.len; i++)
        if (text.at[i] <= ' ' || text.at[i] > '~')
            return false;
    return text.len > 0;
}

/* Names of images, as an error lists them. */
struct names {
    struct buf text;
    size_t count;
    struct str last;
};

static void names_add(struct names *names, struct str name)
{
    if (!is_visible(name))
        name = STR("?"); /* whoever made it, not what it does to a terminal */
    if (str_eq(names->last, name) && names->count)
        return; /* the same image for several architectures */
    names->last = name;
    names->count++;
    if (names->text.len + name.len > NAMES_BYTES) {
        if (!str_ends(buf_str(&names->text), STR(", …")))
            buf_add(&names->text, STR(", …"));
        return;
    }
    buf_add(&names->text, names->text.len ? STR(", ") : STR(""));
    buf_add(&names->text, name);
}

static bool say_which(const struct names *names, struct str name, struct err *err)
{
    struct str list = names->count ? buf_str(&names->text) : STR("none has a name");

    return name.len ? err_set(err, ERR_NOT_FOUND, "there is no image '%.*s' in it; there is: %.*s",
                              (int)MIN(name.len, (size_t)40), name.at, STR_ARG(list))
                    : err_set(err, ERR_INVALID, "there are several images in it, say which: %.*s", STR_ARG(list));
}

bool index_check_names(struct str json, struct str name, struct arena *arena, struct err *err)
{
    struct names names = { .text = buf_make(arena, 2 * NAMES_BYTES) };
    auto_json json_t *index = parse(json, "index", err);
    bool is_there = false;

    if (!index)
        return false;
    const json_t *entries = json_object_get(index, "manifests");
    for (size_t i = 0; i < json_array_size(entries); i++) {
        const json_t *entry = json_array_get(entries, i);
        const json_t *noted =
            json_object_get(json_object_get(entry, "annotations"), "org.opencontainers.image.ref.name");
        is_there |= name.len && has_name(entry, name);
        if (json_is_string(noted))
            names_add(&names, json_str(noted));
    }
    return (name.len ? is_there : names.count <= 1) || say_which(&names, name, err);
}

bool index_choose(struct str json, const char *architecture, struct str name, struct arena *arena,
                  struct descriptor *out, enum document *out_kind, struct err *err)
{
    auto_json json_t *index = parse(json, "index", err);
    const json_t *entries, *best = NULL;
    int best_fit = 0;
    struct str type;
    struct err why;

    if (!index)
        return false;
    if (!json_take_array(index, "manifests", JSON_REQUIRED, &entries, &why))
        return err_set(err, ERR_INVALID, "the image's index has no list of manifests");
    for (size_t i = 0; i < json_array_size(entries); i++) {
        const json_t *entry = json_array_get(entries, i);
        int how = name.len && !has_name(entry, name) ? 0 : fit(entry, architecture);
        if (how > best_fit) {
            best_fit = how;
            best = entry;
        }
    }
    if (!best)
        return name.len ? err_set(err, ERR_NOT_FOUND, "there is no image '%.*s' for linux/%s in it",
                                  (int)MIN(name.len, (size_t)60), name.at, architecture)
                        : err_set(err, ERR_NOT_FOUND, "there is no image for linux/%s in it", architecture);
    if (!take_descriptor(best, arena, out, &type, err))
        return false;
    *out_kind = kind_of_type(type);
    return true;
}

/* ---- manifests ---- */

static bool is_config_type(struct str type)
{
    return type.len == 0 || str_eq(type, STR("application/vnd.oci.image.config.v1+json")) ||
           str_eq(type, STR("application/vnd.docker.container.image.v1+json"));
}

static bool is_layer_type(struct str type, bool *out_foreign)
{
    *out_foreign = str_starts(type, STR("application/vnd.oci.image.layer.nondistributable.v1.tar")) ||
                   str_starts(type, STR("application/vnd.docker.image.rootfs.foreign.diff.tar"));
    return *out_foreign || type.len == 0 || str_starts(type, STR("application/vnd.oci.image.layer.v1.tar")) ||
           str_starts(type, STR("application/vnd.docker.image.rootfs.diff.tar"));
}

static bool not_an_image(struct str type, struct err *err)
{
    return err_set(err, ERR_INVALID, "this is not an image that can be run: it has a part of type '%.*s'",
                   (int)MIN(type.len, (size_t)80), type.at);
}

bool oci_manifest_parse(struct str json, struct arena *arena, struct manifest *out, struct err *err)
{
    auto_json json_t *got = parse(json, "manifest", err);
    struct manifest manifest = { 0 };
    const json_t *config, *layers;
    struct str type;
    struct err why;

    if (!got)
        return false;
    if (!json_take_object(got, "config", JSON_REQUIRED, &config, &why) ||
        !json_take_array(got, "layers", JSON_REQUIRED, &layers, &why))
        return err_set(err, ERR_INVALID, "the image's manifest has no configuration or no layers");
    if (!take_descriptor(config, arena, &manifest.config, &type, err))
        return false;
    if (!is_config_type(type))
        return not_an_image(type, err);
    if (manifest.config.size > LIMIT_REGISTRY_JSON_BYTES)
        return err_set(err, ERR_LIMIT, "the image's configuration has more than %d bytes", LIMIT_REGISTRY_JSON_BYTES);
    size_t count = json_array_size(layers);
    if (count == 0 || count > LIMIT_IMAGE_LAYERS)
        return err_set(err, ERR_LIMIT, "the image has %zu layers; it must have 1 to %d", count, LIMIT_IMAGE_LAYERS);
    manifest.layer_count = (uint32_t)count;
    manifest.layers = ARENA_ARRAY(arena, struct descriptor, count);
    for (size_t i = 0; i < count; i++) {
        struct descriptor *layer = &manifest.layers[i];
        bool is_foreign;
        if (!take_descriptor(json_array_get(layers, i), arena, layer, &type, err))
            return false;
        if (!is_layer_type(type, &is_foreign))
            return not_an_image(type, err);
        layer->is_foreign = is_foreign;
        if (layer->size > LIMIT_UNPACKED_BYTES || manifest.size + layer->size > LIMIT_UNPACKED_BYTES)
            return err_set(err, ERR_LIMIT, "image size exceeds maximum filesystem size: more than %llu MB",
                           (unsigned long long)(LIMIT_UNPACKED_BYTES >> 20));
        manifest.size += layer->size;
    }
    *out = manifest;
    return true;
}

/* ---- configurations ---- */

static bool take_envs(const json_t *got, struct arena *arena, struct image_config *out, struct err *err)
{
    const json_t *config = json_object_get(got, "config"), *list = json_object_get(config, "Env");
    size_t bytes = 0;

    if (!json_is_array(list))
        return true;
    if (json_array_size(list) > LIMIT_IMAGE_ENVS)
        return err_set(err, ERR_LIMIT, "the image has more than %d environment variables", LIMIT_IMAGE_ENVS);
    struct str *envs = ARENA_ARRAY(arena, struct str, json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        struct str text = json_is_string(item) ? json_str(item) : STR(""), rest = text, name;
        bool is_pair = str_has_char(text, '=') && str_cut(&rest, '=', &name) && name.len && rest.len;
        if (!is_pair)
            continue;
        bytes += text.len;
        envs[out->env_count++] = arena_copy(arena, text);
    }
    out->envs = envs;
    return bytes <= LIMIT_IMAGE_ENV_BYTES ||
           err_set(err, ERR_LIMIT, "the image's environment variables have more than %d bytes", LIMIT_IMAGE_ENV_BYTES);
}

static bool take_diffs(const json_t *got, struct arena *arena, struct image_config *out, struct err *err)
{
    const json_t *list = json_object_get(json_object_get(got, "rootfs"), "diff_ids");
    size_t count = json_array_size(list);

    if (count == 0 || count > LIMIT_IMAGE_LAYERS)
        return err_set(err, ERR_INVALID, "the image's configuration names %zu layers; it must name 1 to %d", count,
                       LIMIT_IMAGE_LAYERS);
    out->diff_count = (uint32_t)count;
    out->diffs = arena_alloc_array(arena, count, DIGEST_HEX_BYTES);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_string(item) || !digest_parse(json_str(item), out->diffs[i]))
            return err_set(err, ERR_INVALID, "the image's configuration has a layer without a digest");
    }
    return true;
}

bool image_config_parse(struct str json, const char *architecture, struct arena *arena, struct image_config *out,
                        struct err *err)
{
    auto_json json_t *got = parse(json, "image configuration", err);
    struct str arch = STR(""), os = STR("");
    struct image_config config = { 0 };
    struct err why;

    if (!got)
        return false;
    if (!json_take_str(got, "architecture", JSON_OPTIONAL, &arch, &why) ||
        !json_take_str(got, "os", JSON_OPTIONAL, &os, &why))
        return err_set(err, ERR_INVALID, "the image's configuration has no architecture");
    if (os.len && !str_eq(os, STR("linux")))
        return err_set(err, ERR_INVALID, "image operating system \"%.*s\" does not match expected \"linux\"",
                       (int)MIN(os.len, (size_t)40), os.at);
    if (!str_eq(arch, str_from(architecture)))
        return err_set(err, ERR_INVALID, "image architecture \"%.*s\" does not match expected \"%s\"",
                       (int)MIN(arch.len, (size_t)40), arch.at, architecture);
    if (!take_diffs(got, arena, &config, err) || !take_envs(got, arena, &config, err))
        return false;
    *out = config;
    return true;
}

/* ---- tokens and errors ---- */

bool token_parse(struct str json, struct arena *arena, struct str *out, struct err *err)
{
    auto_json json_t *got = parse(json, "token", err);
    struct str token = STR("");
    struct err why;

    if (!got)
        return false;
    if (!json_take_str(got, "token", JSON_OPTIONAL, &token, &why) ||
        (!token.len && !json_take_str(got, "access_token", JSON_OPTIONAL, &token, &why)) || !is_visible(token) ||
        token.len > LIMIT_REGISTRY_TOKEN_BYTES)
        return err_set(err, ERR_INVALID, "the registry's token server gave no usable token");
    *out = arena_copy(arena, token);
    return true;
}

bool ecr_token_parse(struct str json, struct arena *arena, struct str *out_user, struct str *out_password,
                     struct err *err)
{
    auto_json json_t *got = parse(json, "token", err);
    size_t len;

    if (!got)
        return false;
    const json_t *first = json_array_get(json_object_get(got, "authorizationData"), 0);
    const json_t *token = json_object_get(first, "authorizationToken");
    struct str text = json_is_string(token) ? json_str(token) : STR("");
    unsigned char *room = arena_alloc(arena, text.len / 4 * 3 + 3);
    if (text.len > LIMIT_REGISTRY_TOKEN_BYTES || !base64_decode(text, room, &len))
        len = 0;
    struct str pair = str_of(room, len), user;
    if (!str_has_char(pair, ':') || !str_cut(&pair, ':', &user) || !user.len || !pair.len)
        return err_set(err, ERR_INVALID, "AWS gave no usable token for the registry");
    *out_user = user;
    *out_password = pair;
    return true;
}

enum registry_code registry_code_of(struct str json)
{
    static const struct {
        const char *name;
        enum registry_code code;
    } codes[] = { { "MANIFEST_UNKNOWN", CODE_MANIFEST_UNKNOWN },
                  { "NAME_UNKNOWN", CODE_NAME_UNKNOWN },
                  { "UNAUTHORIZED", CODE_UNAUTHORIZED },
                  { "DENIED", CODE_DENIED } };
    struct err err;
    auto_json json_t *got = parse(json, "error", &err);
    const json_t *code = got ? json_object_get(json_array_get(json_object_get(got, "errors"), 0), "code") : NULL;

    for (size_t i = 0; json_is_string(code) && i < COUNT_OF(codes); i++)
        if (strcmp(json_string_value(code), codes[i].name) == 0)
            return codes[i].code;
    return CODE_NONE;
}

/* ---- archives ---- */

/* "docker.io/library/python:3" is also "python:3"; that a tag is left out means ":latest". */
static bool tag_means(struct str tag, struct str name)
{
    struct str rest = tag;

    if (str_ends(rest, STR(":latest")) && !str_ends(name, STR(":latest")))
        rest.len -= STR(":latest").len;
    return str_eq(rest, name) ||
           (rest.len > name.len && str_ends(rest, name) && rest.at[rest.len - name.len - 1] == '/');
}

static bool has_tag(const json_t *image, struct str name, bool is_exact)
{
    const json_t *tag;
    size_t i;

    json_array_foreach(json_object_get(image, "RepoTags"), i, tag)
    {
        if (json_is_string(tag) && (is_exact ? str_eq(json_str(tag), name) : tag_means(json_str(tag), name)))
            return true;
    }
    return false;
}

static const json_t *find_saved(const json_t *list, struct str name, struct arena *arena, struct err *err)
{
    struct names names = { .text = buf_make(arena, 2 * NAMES_BYTES) };
    const json_t *tag;
    size_t at;

    if (!name.len && json_array_size(list) == 1)
        return json_array_get(list, 0);
    for (size_t i = 0; name.len && i < 2 * json_array_size(list); i++) {
        const json_t *image = json_array_get(list, i % json_array_size(list));
        if (has_tag(image, name, i < json_array_size(list)))
            return image;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *image = json_array_get(list, i);
        json_array_foreach(json_object_get(image, "RepoTags"), at, tag)
        {
            if (json_is_string(tag))
                names_add(&names, json_str(tag));
        }
    }
    if (!name.len && !json_array_size(list))
        (void)err_set(err, ERR_NOT_FOUND, "there is no image in it");
    else
        (void)say_which(&names, name, err);
    return NULL;
}

bool saved_image_choose(struct str json, struct str name, struct arena *arena, struct saved_image *out, struct err *err)
{
    struct err why;
    auto_json json_t *list =
        json.len > LIMIT_REGISTRY_JSON_BYTES ? NULL : json_parse_large(json, LIMIT_REGISTRY_JSON_VALUES, &why);
    struct saved_image got = { 0 };
    const json_t *layers;

    if (!json_is_array(list))
        return err_set(err, ERR_INVALID, "the archive's manifest.json is not a list");
    const json_t *image = find_saved(list, name, arena, err);
    if (!image)
        return false;
    if (!json_is_object(image) || !json_take_str(image, "Config", JSON_REQUIRED, &got.config, &why) ||
        !json_take_array(image, "Layers", JSON_REQUIRED, &layers, &why))
        return err_set(err, ERR_INVALID, "the archive's manifest.json has an image without Config or Layers");
    size_t count = json_array_size(layers);
    if (count == 0 || count > LIMIT_IMAGE_LAYERS)
        return err_set(err, ERR_LIMIT, "the image has %zu layers; it must have 1 to %d", count, LIMIT_IMAGE_LAYERS);
    struct str *names = ARENA_ARRAY(arena, struct str, count);
    for (size_t i = 0; i < count; i++) {
        if (!json_is_string(json_array_get(layers, i)))
            return err_set(err, ERR_INVALID, "the archive's manifest.json has a layer without a name");
        names[i] = arena_copy(arena, json_str(json_array_get(layers, i)));
    }
    got.config = arena_copy(arena, got.config);
    got.layer_count = (uint32_t)count;
    got.layers = names;
    *out = got;
    return true;
}
