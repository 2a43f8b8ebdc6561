/*
 * untar.h - unpacks a layer of an image onto what is below it.
 *
 * root_fd is a writable view of the layers below with the new one on top (an overlay), or an empty directory. An archive of
 * the OCI image format is applied to it as the tools do: later entries replace earlier ones, ".wh.NAME" removes NAME of the
 * layers below, ".wh..wh..opq" everything in its directory that is from below. What has to be copied up or hidden is
 * overlay's work, so directories that the archive does not name keep their modes, owners and times.
 *
 * The archive is a stranger's. Names lead nowhere but below root_fd: symbolic links are followed inside it only, ".." is
 * refused, and what an entry names is never followed. Devices are refused; those in dev/ are left out, because a sandbox has a
 * /dev of its own. Of extended attributes, user.* and security.capability are set.
 *
 * Blocks as long as it takes: for a helper (helper.h).
 */
#ifndef ISOLATION_NATIVE_UNTAR_H
#define ISOLATION_NATIVE_UNTAR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "isolation/plan.h"

struct untar {
    int root_fd, archive_fd;   /* borrowed */
    char diff[LAYER_ID_BYTES]; /* SHA-256 of the archive, unpacked */
    uint64_t most_bytes;       /* of the files together */
    uint64_t entries, bytes;   /* out */
};

/* Before the process is confined: OpenSSL reads its configuration when it is used first. */
bool untar_prepare(struct err *err) must_use;

/*
 * ERR_INVALID: the archive is damaged, has another sum, or an entry that is not allowed; err names it. ERR_LIMIT: too large or
 * too many. ERR_FULL: the disk. After a failure something is left below root_fd.
 */
bool untar_layer(struct untar *untar, struct err *err) must_use;

/* Only whether the archive has that sum: nothing is written, and root_fd is not used. ERR_INVALID, ERR_LIMIT as above. */
bool untar_check(struct untar *untar, struct err *err) must_use;

#endif
