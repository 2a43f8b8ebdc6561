/* A reference that parses means itself when it is written out again; options never make more of it than they should. */
#include <stdio.h>
#include <stdlib.h>

#include "registry/options.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct str text = str_of(data, size), image;
    struct reference got, again;
    static struct image_source source;
    struct endpoint endpoints[LIMIT_REGISTRY_MIRRORS + 1];
    char room[1200], path[PATH_MAX];
    struct err err;

    if (reference_parse(text, &got, &err)) {
        (void)snprintf(room, sizeof room, "%s/%s%s%s%s%s", got.host, got.path, got.tag[0] ? ":" : "", got.tag,
                       got.hex[0] ? "@sha256:" : "", got.hex);
        if (strchr(got.host, '.') || strchr(got.host, ':') || strcmp(got.host, "localhost") == 0) {
            if (!reference_parse(str_from(room), &again, &err) || strcmp(got.path, again.path) != 0 ||
                strcmp(got.tag, again.tag) != 0 || strcmp(got.hex, again.hex) != 0)
                abort();
        }
    }
    /* The first line is an image, the rest are options. */
    if (!str_cut(&text, '\n', &image) || text.len == 0 || str_has_char(text, '\0'))
        return 0;
    const struct registry_options options = { .mirrors = text, .insecure = text, .allow = text, .images = text };
    const struct registry_options images = { .images = text };
    bool is_fine = registry_options_check(&images, &err);
    if (image_source_find(&options, image, &source, &err) && source.kind == SOURCE_REGISTRY)
        (void)!endpoints_find(&options, &source.reference, endpoints);
    (void)registry_standing(&options, image, 443);
    for (uint32_t i = 0; image_source_path(&options, i, path); i++)
        if (path[0] != '/')
            abort();
    if (is_fine && image_source_find(&images, STR("python:3"), &source, &err) && source.kind == SOURCE_LAYOUT &&
        source.path[0] != '/')
        abort();
    return 0;
}
