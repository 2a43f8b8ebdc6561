/*
 * mail_inside.h - what store/mail.c and store/mail_keys.c share.
 */
#ifndef STORE_MAIL_INSIDE_H
#define STORE_MAIL_INSIDE_H

#include "store/inside.h"
#include "store/mail_rows.h"

/* A column with bytes: base64, because SQLite and PostgreSQL spell their type for bytes differently. */
struct sql_value mail_bytes(struct arena *arena, struct str bytes);
struct str mail_row_bytes(const struct sql_rows *rows, int column, struct arena *arena); /* damaged: empty */
/* One durable change. The caller holds the lock. *out_changed may be NULL. */
bool mail_change(struct store *store, const char *query, const struct sql_value *args, size_t count,
                 int64_t *out_changed, struct err *err) must_use;

/* Inside a transaction of the caller. */
bool mail_key_insert(struct store *store, const struct mail_key_row *row, struct arena *arena, struct err *err)
    must_use;
/* Keys have changed in the database: they are looked up again. */
void mail_keys_forget(struct store *store);

#endif
