#include "cli/text.h"

#include <assert.h>
#include <inttypes.h>

#include "base/clock.h"

/* ---- tables ---- */

struct table_row {
    struct table_row *next;
    struct str cells[TABLE_COLUMNS];
};

void table_init(struct table *table, struct arena *arena, const char *const *heads)
{
    *table = (struct table){ .arena = arena };
    table->last = &table->first;
    for (; heads[table->column_count]; table->column_count++) {
        assert(table->column_count < TABLE_COLUMNS);
        const char *head = heads[table->column_count];
        table->is_right[table->column_count] = head[0] == '>';
        table->heads[table->column_count] = head[0] == '>' ? head + 1 : head;
    }
}

static struct str without_controls(struct arena *arena, struct str text)
{
    char *copy = arena_text(arena, text);

    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)copy[i];
        /* C1 controls are 0xC2 0x80..0x9F in UTF-8: some terminals obey those too. */
        bool is_c1 = c == 0xc2 && i + 1 < text.len && (unsigned char)copy[i + 1] < 0xa0;
        if (c < 0x20 || c == 0x7f || is_c1)
            copy[i] = '?';
        if (is_c1)
            copy[i + 1] = '?';
    }
    return str_of(copy, text.len);
}

void table_row(struct table *table, const struct str *cells)
{
    struct table_row *row = ARENA_NEW(table->arena, struct table_row);

    for (size_t i = 0; i < table->column_count; i++)
        row->cells[i] = without_controls(table->arena, cells[i]);
    *table->last = row;
    table->last = &row->next;
}

/* Characters, not bytes: everything but UTF-8 continuation bytes. Wide characters are rare in ids and names. */
static size_t width_of(struct str text)
{
    size_t width = 0;

    for (size_t i = 0; i < text.len; i++)
        width += ((unsigned char)text.at[i] & 0xc0) != 0x80;
    return width;
}

static void print_cell(FILE *out, struct str cell, size_t width, bool is_right, bool is_last)
{
    int padding = (int)(width - width_of(cell));

    if (is_right)
        fprintf(out, "%*s%.*s", padding, "", STR_ARG(cell));
    else
        fprintf(out, "%.*s%*s", STR_ARG(cell), is_last ? 0 : padding, "");
    fputs(is_last ? "\n" : "  ", out);
}

void table_print(const struct table *table, FILE *out, bool is_colored, const char *empty)
{
    size_t widths[TABLE_COLUMNS];

    if (!table->first) {
        fprintf(out, "%s\n", empty);
        return;
    }
    for (size_t i = 0; i < table->column_count; i++) {
        widths[i] = width_of(str_from(table->heads[i]));
        for (const struct table_row *row = table->first; row; row = row->next)
            widths[i] = MAX(widths[i], width_of(row->cells[i]));
    }
    if (is_colored)
        fputs("\033[1m", out);
    for (size_t i = 0; i < table->column_count; i++) {
        bool is_last = i + 1 == table->column_count;
        /* Reset before the line ends: some terminals would begin the next line in bold. */
        if (is_last && is_colored) {
            fprintf(out, "%s\033[0m\n", table->heads[i]);
            break;
        }
        print_cell(out, str_from(table->heads[i]), widths[i], table->is_right[i], is_last);
    }
    for (const struct table_row *row = table->first; row; row = row->next)
        for (size_t i = 0; i < table->column_count; i++)
            print_cell(out, row->cells[i], widths[i], table->is_right[i], i + 1 == table->column_count);
}

/* ---- numbers ---- */

struct str text_span(struct arena *arena, int64_t us)
{
    static const struct {
        int64_t most_s, divisor_s;
        const char *unit;
    } scales[] = {
        { 120, 1, "s" },
        { 120 * 60, 60, "min" },
        { 48 * 3600, 3600, "h" },
        { INT64_MAX, 86400, "d" },
    };
    int64_t s = us > 0 ? us / 1000000 : 0;
    size_t i = 0;

    while (s >= scales[i].most_s)
        i++;
    return arena_format(arena, "%" PRId64 " %s", s / scales[i].divisor_s, scales[i].unit);
}

struct str text_ago(struct arena *arena, struct str when)
{
    int64_t us;

    if (!clock_parse(when, &us))
        return STR("-");
    return arena_format(arena, "%.*s ago", STR_ARG(text_span(arena, clock_wall_us() - us)));
}

struct str text_mib(struct arena *arena, int64_t mib)
{
    if (mib < 1024)
        return arena_format(arena, "%" PRId64 " MiB", mib);
    int64_t tenths = mib * 10 / 1024;
    if (tenths % 10 == 0)
        return arena_format(arena, "%" PRId64 " GiB", tenths / 10);
    return arena_format(arena, "%" PRId64 ".%" PRId64 " GiB", tenths / 10, tenths % 10);
}

struct str text_bytes(struct arena *arena, uint64_t bytes)
{
    uint64_t kib = bytes / 1024 + (bytes % 1024 != 0);

    if (kib < 1024)
        return arena_format(arena, "%" PRIu64 " KiB", kib);
    return text_mib(arena, (int64_t)(kib / 1024 + (kib % 1024 != 0)));
}

/* ---- quoting ---- */

static bool is_plain(char c)
{
    return char_is_alnum(c) || (c != '\0' && strchr("_./:@%+=,-", c) != NULL);
}

void text_shell_quote(struct buf *out, struct str word)
{
    size_t plain = 0;

    while (plain < word.len && is_plain(word.at[plain]))
        plain++;
    if (word.len && plain == word.len) {
        buf_add(out, word);
        return;
    }
    buf_add_char(out, '\'');
    for (size_t i = 0; i < word.len; i++) {
        /* Inside single quotes nothing is special but the quote itself: close, escape it, open again. */
        if (word.at[i] == '\'')
            buf_add(out, STR("'\\''"));
        else
            buf_add_char(out, word.at[i]);
    }
    buf_add_char(out, '\'');
}

/* ---- the nearest name ---- */

enum { NEAREST_BYTES = 48, NEAREST_SLIPS = 2 };

/* Damerau-Levenshtein in its simple form: insert, delete, change, swap neighbours. Words are short. */
static size_t slips_between(struct str a, struct str b)
{
    size_t cost[NEAREST_BYTES + 1][NEAREST_BYTES + 1];

    for (size_t i = 0; i <= a.len; i++)
        cost[i][0] = i;
    for (size_t j = 0; j <= b.len; j++)
        cost[0][j] = j;
    for (size_t i = 1; i <= a.len; i++)
        for (size_t j = 1; j <= b.len; j++) {
            size_t best = cost[i - 1][j - 1] + (a.at[i - 1] != b.at[j - 1]);
            best = MIN(best, cost[i - 1][j] + 1);
            best = MIN(best, cost[i][j - 1] + 1);
            if (i > 1 && j > 1 && a.at[i - 1] == b.at[j - 2] && a.at[i - 2] == b.at[j - 1])
                best = MIN(best, cost[i - 2][j - 2] + 1);
            cost[i][j] = best;
        }
    return cost[a.len][b.len];
}

const char *text_nearest(const char *word, const char *const *names, size_t count)
{
    struct str typed = str_from(word);
    const char *nearest = NULL;
    size_t least = NEAREST_SLIPS + 1;

    if (typed.len == 0 || typed.len > NEAREST_BYTES)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        struct str name = str_from(names[i]);
        if (name.len > NEAREST_BYTES)
            continue;
        size_t slips = slips_between(typed, name);
        /* Two mistakes in a word of three letters make it another word. */
        if (slips * 2 > name.len)
            slips = NEAREST_SLIPS + 1;
        if (slips > 1 && typed.len >= 2 && str_starts(name, typed))
            slips = 1;
        if (slips < least) {
            least = slips;
            nearest = names[i];
        }
    }
    return nearest;
}
