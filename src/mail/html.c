/*
 * Theory of operation. Gumbo makes a tree as a browser would. The tree is walked once, with a stack of our own (an attacker
 * chooses its depth), and each element is one of
 *
 *   kept       in the table below: its tag is written again with the few attributes that are allowed
 *   dropped    with all that is inside: scripts, styles, forms, media
 *   unwrapped  all others: only what is inside is written
 *
 * Two writers run along: one makes HTML, one makes Markdown. Text that is hidden (by attribute, by style, by having the
 * colour of its background) goes to neither, but to `hidden`, which the scan reads.
 *
 * Gumbo's time grows with the depth of the tree times the number of tags, so it has a budget (budget.h).
 */
#include "mail/html.h"

#include <gumbo.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"
#include "mail/budget.h"
#include "mail/text.h"

enum {
    DEPTH_KEPT = 100,      /* deeper elements are unwrapped */
    LINKS_MOST = 256,      /* that are told to the scan */
    HIDDEN_MOST = 1 << 16, /* bytes of hidden text that are told to the scan */
    QUOTES_MOST = 8,       /* marks of a quote at the start of a line */
    COLOR_NEAR = 48,       /* sum of the differences of two colours that nobody can tell apart */
};

/* ---- the tree ---- */

static void *tree_alloc(void *user, size_t size)
{
    return budget_alloc(user, size);
}

static void tree_free(void *user, void *at)
{
    (void)user;
    budget_free(at);
}

/* NULL: too complex. The tree is the budget's: Gumbo's own function to free it recurses. */
static GumboOutput *parse(struct str source, struct budget *budget)
{
    GumboOptions options = kGumboDefaultOptions;

    options.allocator = tree_alloc;
    options.deallocator = tree_free;
    options.userdata = budget;
    options.max_errors = 0;
    budget_init(budget, LIMIT_MAIL_TREE_BYTES, LIMIT_MAIL_TREE_MS);
    if (setjmp(budget->out))
        return NULL;
    return gumbo_parse_with_options(&options, source.at, source.len);
}

/* ---- elements ---- */

enum element_kind { UNWRAPPED, KEPT, KEPT_VOID, DROPPED, ACTIVE };

/* Everything that is not here is unwrapped. */
static const struct {
    GumboTag tag;
    enum element_kind kind;
} elements[] = {
    { GUMBO_TAG_P, KEPT },           { GUMBO_TAG_BR, KEPT_VOID },    { GUMBO_TAG_HR, KEPT_VOID },
    { GUMBO_TAG_B, KEPT },           { GUMBO_TAG_STRONG, KEPT },     { GUMBO_TAG_I, KEPT },
    { GUMBO_TAG_EM, KEPT },          { GUMBO_TAG_U, KEPT },          { GUMBO_TAG_S, KEPT },
    { GUMBO_TAG_DEL, KEPT },         { GUMBO_TAG_INS, KEPT },        { GUMBO_TAG_SUB, KEPT },
    { GUMBO_TAG_SUP, KEPT },         { GUMBO_TAG_SMALL, KEPT },      { GUMBO_TAG_CODE, KEPT },
    { GUMBO_TAG_PRE, KEPT },         { GUMBO_TAG_KBD, KEPT },        { GUMBO_TAG_SAMP, KEPT },
    { GUMBO_TAG_BLOCKQUOTE, KEPT },  { GUMBO_TAG_UL, KEPT },         { GUMBO_TAG_OL, KEPT },
    { GUMBO_TAG_LI, KEPT },          { GUMBO_TAG_DL, KEPT },         { GUMBO_TAG_DT, KEPT },
    { GUMBO_TAG_DD, KEPT },          { GUMBO_TAG_H1, KEPT },         { GUMBO_TAG_H2, KEPT },
    { GUMBO_TAG_H3, KEPT },          { GUMBO_TAG_H4, KEPT },         { GUMBO_TAG_H5, KEPT },
    { GUMBO_TAG_H6, KEPT },          { GUMBO_TAG_TABLE, KEPT },      { GUMBO_TAG_THEAD, KEPT },
    { GUMBO_TAG_TBODY, KEPT },       { GUMBO_TAG_TFOOT, KEPT },      { GUMBO_TAG_TR, KEPT },
    { GUMBO_TAG_TH, KEPT },          { GUMBO_TAG_TD, KEPT },         { GUMBO_TAG_CAPTION, KEPT },
    { GUMBO_TAG_A, KEPT },           { GUMBO_TAG_DIV, KEPT },        { GUMBO_TAG_SPAN, KEPT },
    { GUMBO_TAG_Q, KEPT },           { GUMBO_TAG_CITE, KEPT },       { GUMBO_TAG_MARK, KEPT },
    { GUMBO_TAG_HEAD, DROPPED },     { GUMBO_TAG_TITLE, DROPPED },   { GUMBO_TAG_STYLE, DROPPED },
    { GUMBO_TAG_TEMPLATE, DROPPED }, { GUMBO_TAG_SELECT, DROPPED },  { GUMBO_TAG_TEXTAREA, DROPPED },
    { GUMBO_TAG_INPUT, DROPPED },    { GUMBO_TAG_AUDIO, DROPPED },   { GUMBO_TAG_VIDEO, DROPPED },
    { GUMBO_TAG_CANVAS, DROPPED },   { GUMBO_TAG_MAP, DROPPED },     { GUMBO_TAG_DATALIST, DROPPED },
    { GUMBO_TAG_NOFRAMES, DROPPED }, { GUMBO_TAG_NOEMBED, DROPPED }, { GUMBO_TAG_SCRIPT, ACTIVE },
    { GUMBO_TAG_IFRAME, ACTIVE },    { GUMBO_TAG_OBJECT, ACTIVE },   { GUMBO_TAG_EMBED, ACTIVE },
    { GUMBO_TAG_APPLET, ACTIVE },    { GUMBO_TAG_FRAME, ACTIVE },    { GUMBO_TAG_FRAMESET, ACTIVE },
    { GUMBO_TAG_SVG, DROPPED },      { GUMBO_TAG_MATH, DROPPED },
};

static enum element_kind kind_of(const GumboElement *element)
{
    if (element->tag_namespace != GUMBO_NAMESPACE_HTML)
        return element->tag == GUMBO_TAG_SCRIPT ? ACTIVE : DROPPED;
    for (size_t i = 0; i < COUNT_OF(elements); i++)
        if (elements[i].tag == element->tag)
            return elements[i].kind;
    return UNWRAPPED;
}

static struct str attribute(const GumboElement *element, const char *name)
{
    const GumboAttribute *a = gumbo_get_attribute(&element->attributes, name);

    return a ? str_from(a->value) : STR("");
}

/* ---- hidden? ---- */

/* -1: none, or one that is not understood. */
static long color_parse(struct str text)
{
    static const struct {
        struct str name;
        long color;
    } names[] = { { STR_INIT("white"), 0xFFFFFF }, { STR_INIT("black"), 0 },
                  { STR_INIT("snow"), 0xFFFAFA },  { STR_INIT("ivory"), 0xFFFFF0 },
                  { STR_INIT("azure"), 0xF0FFFF }, { STR_INIT("red"), 0xFF0000 },
                  { STR_INIT("blue"), 0xFF },      { STR_INIT("whitesmoke"), 0xF5F5F5 } };
    char digits[7];

    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (str_eq(text, names[i].name))
            return names[i].color;
    if (str_skip(&text, STR("#"))) {
        if (text.len == 3)
            for (size_t i = 0; i < 6; i++)
                digits[i] = text.at[i / 2];
        else if (text.len == 6)
            memcpy(digits, text.at, 6);
        else
            return -1;
        digits[6] = '\0';
        return strspn(digits, "0123456789abcdef") == 6 ? strtol(digits, NULL, 16) : -1;
    }
    if (str_skip(&text, STR("rgb(")) && str_ends(text, STR(")"))) {
        long color = 0;
        struct str part;
        uint64_t value;
        text.len--;
        for (int i = 0; i < 3; i++) {
            if (!str_cut(&text, ',', &part) || !str_to_u64(part, 255, &value))
                return -1;
            color = color << 8 | (long)value;
        }
        return color;
    }
    return -1;
}

static bool color_is_near(long a, long b)
{
    long sum = 0;

    if (a < 0 || b < 0)
        return false;
    for (int shift = 0; shift < 24; shift += 8)
        sum += labs((a >> shift & 0xFF) - (b >> shift & 0xFF));
    return sum < COLOR_NEAR;
}

/* "0", "0px", "0.0em": nothing; also a size of at most two pixels. */
static bool is_tiny(struct str value)
{
    char room[16];
    char *end;

    if (!value.len || value.len >= sizeof room)
        return false;
    memcpy(room, value.at, value.len);
    room[value.len] = '\0';
    double size = strtod(room, &end);
    if (end == room)
        return false;
    return size < 0.01 || (size <= 2 && (!strcmp(end, "px") || !strcmp(end, "pt")));
}

struct look {
    bool is_hidden;
    long color, background; /* -1: not known */
};

static void look_at_style(struct str name, struct str value, struct look *look)
{
    if (str_eq(name, STR("display")))
        look->is_hidden |= str_starts(value, STR("none"));
    else if (str_eq(name, STR("visibility")))
        look->is_hidden |= str_starts(value, STR("hidden")) || str_starts(value, STR("collapse"));
    else if (str_eq(name, STR("mso-hide")))
        look->is_hidden |= str_starts(value, STR("all"));
    else if (str_eq(name, STR("font-size")) || str_eq(name, STR("max-height")) || str_eq(name, STR("max-width")))
        look->is_hidden |= is_tiny(value);
    else if (str_eq(name, STR("opacity")))
        look->is_hidden |= is_tiny(value) || str_starts(value, STR("0.0"));
    else if (str_eq(name, STR("text-indent")) || str_eq(name, STR("left")) || str_eq(name, STR("top")))
        look->is_hidden |= str_starts(value, STR("-")) && value.len >= 5 && char_is_digit(value.at[3]);
    else if (str_eq(name, STR("color")))
        look->color = str_eq(value, STR("transparent")) ? look->background : color_parse(value);
    else if (str_eq(name, STR("background")) || str_eq(name, STR("background-color")))
        look->background = color_parse(value);
}

/* What the element's own attributes change; *look is that of its parent. */
static void look_at(const GumboElement *element, struct arena *arena, struct look *look)
{
    struct str style = attribute(element, "style"), rule, name, color;

    if (gumbo_get_attribute(&element->attributes, "hidden"))
        look->is_hidden = true;
    color = attribute(element, "bgcolor");
    if (color.len) {
        char *text = arena_text(arena, color);
        text_lower(text, color.len);
        look->background = color_parse(str_of(text, color.len));
    }
    color = attribute(element, "color"); /* of font */
    if (color.len) {
        char *text = arena_text(arena, color);
        text_lower(text, color.len);
        look->color = color_parse(str_of(text, color.len));
    }
    if (style.len) {
        struct buf plain = buf_make(arena, style.len);
        for (size_t i = 0; i < style.len; i++)
            if ((unsigned char)style.at[i] > ' ')
                buf_add_char(&plain, char_lower(style.at[i]));
        style = buf_str(&plain);
        while (style.len && str_cut(&style, ';', &rule)) {
            if (!str_cut(&rule, ':', &name))
                continue;
            for (size_t i = 0; i + 10 <= rule.len; i++)
                if (str_starts(str_of(rule.at + i, rule.len - i), STR("!important")))
                    rule.len = i;
            look_at_style(name, rule, look);
        }
    }
}

/* ---- writers ---- */

void html_escape(struct buf *out, struct str text)
{
    for (size_t i = 0; i < text.len; i++) {
        switch (text.at[i]) {
        case '&':
            buf_add(out, STR("&amp;"));
            break;
        case '<':
            buf_add(out, STR("&lt;"));
            break;
        case '>':
            buf_add(out, STR("&gt;"));
            break;
        case '"':
            buf_add(out, STR("&quot;"));
            break;
        default:
            buf_add_char(out, text.at[i]);
        }
    }
}

struct writer {
    struct html *found;
    struct arena *arena;
    struct buf html, text, hidden;
    struct html_link links[LINKS_MOST];
    /* Of the text: */
    unsigned lines;  /* line ends that are due before the next word */
    bool space;      /* a space is due */
    unsigned quotes; /* depth of blockquote… */
    unsigned quoted; /* …and at the last word */
    unsigned pre;    /* depth of pre */
};

static void text_break(struct writer *w, unsigned lines)
{
    w->lines = MAX(w->lines, lines);
    w->space = false;
}

static void text_start(struct writer *w)
{
    if (w->lines && w->text.len) {
        for (unsigned i = 0; i < w->lines; i++) {
            buf_add_char(&w->text, '\n');
            /* An empty line is quoted only within a quote, not before or after one. */
            bool last = i + 1 == w->lines;
            for (unsigned q = 0; q < MIN(last ? w->quotes : MIN(w->quotes, w->quoted), (unsigned)QUOTES_MOST); q++)
                buf_add(&w->text, last ? STR("> ") : STR(">"));
        }
    } else if (w->lines || !w->text.len) {
        for (unsigned q = 0; q < MIN(w->quotes, (unsigned)QUOTES_MOST); q++)
            buf_add(&w->text, STR("> "));
    } else if (w->space) {
        buf_add_char(&w->text, ' ');
    }
    w->lines = 0;
    w->space = false;
    w->quoted = w->quotes;
}

/* A mark such as ** or `: stays with the word that follows. */
static void text_mark(struct writer *w, struct str mark)
{
    text_start(w);
    buf_add(&w->text, mark);
}

static void text_words(struct writer *w, struct str words)
{
    while (words.len) {
        struct str rest = words;
        uint32_t c = text_next(&rest);
        struct str piece = str_of(words.at, words.len - rest.len);
        words = rest;
        if (w->pre && c == '\n') {
            text_start(w);
            buf_add_char(&w->text, '\n');
            continue;
        }
        if (!w->pre && (c == ' ' || c == '\n' || c == '\t' || c == 0xA0)) {
            w->space = w->text.len > 0;
            continue;
        }
        if (w->lines || w->space || !w->text.len)
            text_start(w);
        buf_add(&w->text, piece);
    }
}

/* The scheme decides. Browsers ignore control characters inside it, so they are removed before we look. */
static struct str safe_link(struct arena *arena, struct str href)
{
    static const struct str schemes[] = { STR_INIT("http://"), STR_INIT("https://"), STR_INIT("mailto:"),
                                          STR_INIT("tel:") };
    struct buf out = buf_make(arena, href.len * 3);
    struct str clean = str_trim(text_clean(arena, href, TEXT_LINE, NULL));

    for (size_t i = 0; i < clean.len; i++) {
        if (clean.at[i] == ' ')
            buf_add(&out, STR("%20"));
        else
            buf_add_char(&out, clean.at[i]);
    }
    for (size_t i = 0; i < COUNT_OF(schemes); i++) {
        struct str rest = buf_str(&out);
        if (str_skip_nocase(&rest, schemes[i]) && rest.len)
            return buf_str(&out);
    }
    return STR("");
}

static void html_open(struct writer *w, const GumboElement *element, struct str href)
{
    static const char *const sizes[] = { "colspan", "rowspan", "start" };
    uint64_t number;

    buf_add_char(&w->html, '<');
    buf_add(&w->html, str_from(gumbo_normalized_tagname(element->tag)));
    if (href.len) {
        buf_add(&w->html, STR(" href=\""));
        html_escape(&w->html, href);
        buf_add(&w->html, STR("\" rel=\"noopener noreferrer\""));
    }
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        if (str_to_u64(attribute(element, sizes[i]), 1000, &number))
            buf_format(&w->html, " %s=\"%u\"", sizes[i], (unsigned)number);
    buf_add_char(&w->html, '>');
}

struct frame {
    const GumboNode *node;
    unsigned child;
    enum element_kind kind;
    struct look look;
    bool is_written; /* its tag is in the HTML */
    unsigned number; /* of the next item of an ol */
    struct str href;
    size_t text_from; /* in the text: after its mark */
};

static bool is_block(GumboTag tag)
{
    switch (tag) {
    case GUMBO_TAG_DIV:
    case GUMBO_TAG_TR:
    case GUMBO_TAG_DT:
    case GUMBO_TAG_DD:
    case GUMBO_TAG_LI:
    case GUMBO_TAG_CAPTION:
    case GUMBO_TAG_SECTION:
    case GUMBO_TAG_ARTICLE:
    case GUMBO_TAG_HEADER:
    case GUMBO_TAG_FOOTER:
    case GUMBO_TAG_CENTER:
    case GUMBO_TAG_ADDRESS:
        return true;
    default:
        return false;
    }
}

static bool is_paragraph(GumboTag tag)
{
    switch (tag) {
    case GUMBO_TAG_P:
    case GUMBO_TAG_UL:
    case GUMBO_TAG_OL:
    case GUMBO_TAG_DL:
    case GUMBO_TAG_PRE:
    case GUMBO_TAG_BLOCKQUOTE:
    case GUMBO_TAG_TABLE:
    case GUMBO_TAG_H1:
    case GUMBO_TAG_H2:
    case GUMBO_TAG_H3:
    case GUMBO_TAG_H4:
    case GUMBO_TAG_H5:
    case GUMBO_TAG_H6:
        return true;
    default:
        return false;
    }
}

static struct str inline_mark(GumboTag tag)
{
    switch (tag) {
    case GUMBO_TAG_B:
    case GUMBO_TAG_STRONG:
        return STR("**");
    case GUMBO_TAG_I:
    case GUMBO_TAG_EM:
        return STR("*");
    case GUMBO_TAG_S:
    case GUMBO_TAG_DEL:
        return STR("~~");
    case GUMBO_TAG_CODE:
    case GUMBO_TAG_KBD:
    case GUMBO_TAG_SAMP:
        return STR("`");
    default:
        return STR("");
    }
}

static void image(struct writer *w, const GumboElement *element)
{
    struct str alt = str_trim(text_clean(w->arena, attribute(element, "alt"), TEXT_LINE, NULL)),
               source = attribute(element, "src");

    if (str_skip_nocase(&source, STR("http:")) || str_skip_nocase(&source, STR("https:")) ||
        str_skip(&source, STR("//")))
        w->found->images++;
    if (!alt.len)
        return;
    buf_add(&w->html, STR("[image: "));
    html_escape(&w->html, alt);
    buf_add_char(&w->html, ']');
    text_words(w, STR("[image: "));
    text_words(w, alt);
    text_words(w, STR("]"));
}

static void enter_text(struct writer *w, struct frame *f, struct frame *parent, const GumboElement *element)
{
    GumboTag tag = element->tag;

    if (is_paragraph(tag))
        text_break(w, 2);
    else if (is_block(tag) || tag == GUMBO_TAG_BR)
        text_break(w, tag == GUMBO_TAG_BR ? MIN(w->lines + 1, 2u) : 1);
    if (tag >= GUMBO_TAG_H1 && tag <= GUMBO_TAG_H6)
        text_mark(w, str_of(&"###### "[GUMBO_TAG_H6 - tag], (size_t)(tag - GUMBO_TAG_H1) + 2));
    if (tag == GUMBO_TAG_HR) {
        text_break(w, 2);
        text_mark(w, STR("---"));
        text_break(w, 2);
    } else if (tag == GUMBO_TAG_LI) {
        if (parent && parent->node->type == GUMBO_NODE_ELEMENT && parent->node->v.element.tag == GUMBO_TAG_OL) {
            char number[16];
            snprintf(number, sizeof number, "%u. ", ++parent->number);
            text_mark(w, str_from(number));
        } else {
            text_mark(w, STR("- "));
        }
    } else if (tag == GUMBO_TAG_BLOCKQUOTE) {
        w->quotes++;
    } else if (tag == GUMBO_TAG_PRE) {
        text_mark(w, STR("```\n"));
        w->pre++;
    } else if ((tag == GUMBO_TAG_TD || tag == GUMBO_TAG_TH) && !w->lines && w->text.len) {
        text_words(w, STR(" | "));
    } else if (tag == GUMBO_TAG_A && f->href.len) {
        text_mark(w, STR("["));
    } else if (!w->pre && inline_mark(tag).len) {
        text_mark(w, inline_mark(tag));
    }
    f->text_from = w->text.len;
}

static void leave_link(struct writer *w, struct frame *f)
{
    struct str shown;

    if (w->text.overflowed)
        return;
    shown = arena_copy(w->arena, str_of(w->text.data + f->text_from, w->text.len - f->text_from));
    if (w->found->link_count < LINKS_MOST)
        w->links[w->found->link_count++] = (struct html_link){ f->href, shown };
    /* A link whose text is its address needs no second one. */
    struct str plain = f->href;
    (void)str_skip(&plain, STR("mailto:"));
    if (!shown.len || str_eq(shown, plain) || str_eq(shown, f->href)) {
        w->text.len = f->text_from - 1;
        buf_add(&w->text, plain);
        return;
    }
    buf_add(&w->text, STR("]("));
    buf_add(&w->text, f->href);
    buf_add_char(&w->text, ')');
}

static void leave_text(struct writer *w, struct frame *f)
{
    GumboTag tag = f->node->v.element.tag;
    struct str mark = inline_mark(tag);

    if (tag == GUMBO_TAG_PRE) {
        w->pre--;
        buf_add(&w->text, str_ends(buf_str(&w->text), STR("\n")) ? STR("```") : STR("\n```"));
    }
    if (tag == GUMBO_TAG_BLOCKQUOTE)
        w->quotes--;
    if (tag == GUMBO_TAG_A && f->href.len)
        leave_link(w, f);
    else if (!w->pre && mark.len) {
        if (w->text.len == f->text_from && !w->text.overflowed)
            w->text.len -= mark.len; /* nothing was inside */
        else
            buf_add(&w->text, mark);
    }
    if (is_paragraph(tag))
        text_break(w, 2);
    else if (is_block(tag))
        text_break(w, 1);
}

static void enter(struct writer *w, struct frame *f, struct frame *parent, size_t depth)
{
    const GumboElement *element = &f->node->v.element;

    f->kind = kind_of(element);
    if (f->kind == ACTIVE)
        w->found->scripts++;
    for (unsigned i = 0; i < element->attributes.length; i++) {
        struct str name = str_from(((const GumboAttribute *)element->attributes.data[i])->name);
        w->found->scripts += str_starts(name, STR("on")) && name.len > 4;
    }
    if (f->kind == DROPPED || f->kind == ACTIVE)
        return;
    look_at(element, w->arena, &f->look);
    if (f->look.is_hidden)
        return;
    if (element->tag == GUMBO_TAG_IMG) {
        image(w, element);
        return;
    }
    if (element->tag == GUMBO_TAG_A)
        f->href = safe_link(w->arena, attribute(element, "href"));
    enter_text(w, f, parent, element);
    f->is_written = (f->kind == KEPT || f->kind == KEPT_VOID) && depth < DEPTH_KEPT;
    if (f->is_written)
        html_open(w, element, f->href);
}

static void leave(struct writer *w, struct frame *f)
{
    if (f->kind == DROPPED || f->kind == ACTIVE || f->look.is_hidden)
        return;
    leave_text(w, f);
    if (f->is_written && f->kind == KEPT)
        buf_format(&w->html, "</%s>", gumbo_normalized_tagname(f->node->v.element.tag));
}

static void words(struct writer *w, const struct frame *f, const GumboNode *node)
{
    uint32_t removed;
    struct str text = text_clean(w->arena, str_from(node->v.text.text), TEXT_LINES, &removed);

    bool is_seen =
        node->type != GUMBO_NODE_COMMENT && !f->look.is_hidden && !color_is_near(f->look.color, f->look.background);
    if (!is_seen) {
        if (w->hidden.len + text.len < HIDDEN_MOST) {
            buf_add(&w->hidden, text);
            buf_add_char(&w->hidden, '\n');
        }
        return;
    }
    w->found->invisible += removed;
    text_words(w, text);
    html_escape(&w->html, text);
}

static void walk(struct writer *w, const GumboNode *root)
{
    size_t room = 64, depth = 0;
    struct frame *stack = mem_grow(NULL, room * sizeof *stack);

    stack[0] = (struct frame){ .node = root, .look = { .color = 0, .background = 0xFFFFFF } };
    for (bool more = true; more && !w->html.overflowed && !w->text.overflowed;) {
        struct frame *f = &stack[depth];
        const GumboVector *children = &f->node->v.element.children;
        bool skip = f->kind == DROPPED || f->kind == ACTIVE;
        if (skip || f->child >= children->length) {
            leave(w, f);
            more = depth-- > 0;
            continue;
        }
        const GumboNode *node = children->data[f->child++];
        if (node->type == GUMBO_NODE_ELEMENT || node->type == GUMBO_NODE_TEMPLATE) {
            if (++depth == room) {
                room *= 2;
                stack = mem_grow(stack, room * sizeof *stack);
            }
            stack[depth] = (struct frame){ .node = node, .look = stack[depth - 1].look };
            enter(w, &stack[depth], &stack[depth - 1], depth);
        } else {
            words(w, f, node);
        }
    }
    free(stack);
}

/* ---- both ---- */

/* What is left when the tags are cut out. Not safe as HTML, which is why it is escaped. */
static struct str cut_tags(struct arena *arena, struct str source)
{
    struct buf out = buf_make(arena, source.len);
    bool in_tag = false;

    for (size_t i = 0; i < source.len; i++) {
        if (source.at[i] == '<')
            in_tag = true;
        else if (source.at[i] == '>' && in_tag)
            in_tag = false;
        else if (!in_tag)
            buf_add_char(&out, source.at[i]);
    }
    return text_clean(arena, buf_str(&out), TEXT_LINES, NULL);
}

static void as_text(struct str source, struct arena *arena, struct html *out)
{
    struct buf html = buf_make(arena, LIMIT_MAIL_HTML_BYTES);

    out->text = text_cut(cut_tags(arena, source), LIMIT_MAIL_HTML_BYTES / 8);
    buf_add(&html, STR("<pre>"));
    html_escape(&html, out->text);
    buf_add(&html, STR("</pre>"));
    out->html = buf_str(&html);
    out->is_cut = true;
}

void html_read(struct str source, struct arena *arena, struct html *out)
{
    struct budget *budget = NEW(struct budget);
    struct writer *w = ARENA_NEW(arena, struct writer);
    GumboOutput *tree = parse(source, budget);

    *out = (struct html){ 0 };
    if (tree) {
        w->found = out;
        w->arena = arena;
        w->html = buf_make(arena, LIMIT_MAIL_HTML_BYTES);
        w->text = buf_make(arena, LIMIT_MAIL_TEXT_BYTES);
        w->hidden = buf_make(arena, HIDDEN_MOST);
        walk(w, tree->root);
        out->html = buf_str(&w->html);
        out->text = buf_str(&w->text);
        out->hidden = buf_str(&w->hidden);
        out->links = w->links;
    }
    if (!tree || w->html.overflowed || w->text.overflowed)
        as_text(source, arena, out);
    budget_done(budget);
    free(budget);
}
