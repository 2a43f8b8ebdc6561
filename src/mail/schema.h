/*
 * schema.h - the tables of an inbox's file; schema.sql, embedded.
 */
#ifndef MAIL_SCHEMA_H
#define MAIL_SCHEMA_H

extern const char mail_schema_sql[];

#endif
