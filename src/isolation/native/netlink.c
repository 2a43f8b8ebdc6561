#include "isolation/native/netlink.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netlink.h>
#include <string.h>
#include <sys/socket.h>

#include "base/fd.h"

enum {
    BATCH_BYTES = 8192,
    ANSWER_BYTES = 8192, /* the kernel may add the message that failed to an answer; ours are shorter than this */
};

void netlink_init(struct netlink *batch, int protocol)
{
    *batch = (struct netlink){ .protocol = protocol, .bytes = buf_make(NULL, BATCH_BYTES) };
}

void netlink_done(struct netlink *batch)
{
    buf_done(&batch->bytes);
}

/* ---- writing ---- */

static void add_aligned(struct netlink *batch, const void *data, size_t len)
{
    static const char zeros[NLMSG_ALIGNTO] = { 0 };

    if (len)
        buf_add(&batch->bytes, str_of(data, len));
    buf_add(&batch->bytes, str_of(zeros, NLMSG_ALIGN(len) - len));
}

/* The message that was begun last is as long as what has been written since. */
static void set_length(struct netlink *batch)
{
    uint32_t len = (uint32_t)(batch->bytes.len - batch->message);

    if (!batch->bytes.overflowed)
        memcpy(batch->bytes.data + batch->message + offsetof(struct nlmsghdr, nlmsg_len), &len, sizeof len);
}

void netlink_message(struct netlink *batch, uint16_t type, uint16_t flags, const void *head, size_t len)
{
    const struct nlmsghdr header = { .nlmsg_type = type,
                                     .nlmsg_flags = flags | NLM_F_REQUEST,
                                     .nlmsg_seq = ++batch->count };

    batch->message = batch->bytes.len;
    add_aligned(batch, &header, sizeof header);
    add_aligned(batch, head, len);
    set_length(batch);
}

void netlink_ask_answer(struct netlink *batch)
{
    size_t at = batch->message + offsetof(struct nlmsghdr, nlmsg_flags);
    uint16_t flags;

    if (batch->bytes.overflowed)
        return;
    memcpy(&flags, batch->bytes.data + at, sizeof flags);
    flags |= NLM_F_ACK;
    memcpy(batch->bytes.data + at, &flags, sizeof flags);
}

void netlink_attr(struct netlink *batch, uint16_t type, const void *data, size_t len)
{
    const struct nlattr header = { .nla_len = (uint16_t)(NLA_HDRLEN + len), .nla_type = type };

    add_aligned(batch, &header, sizeof header);
    add_aligned(batch, data, len);
    set_length(batch);
}

void netlink_text(struct netlink *batch, uint16_t type, const char *text)
{
    netlink_attr(batch, type, text, strlen(text) + 1);
}

void netlink_u32(struct netlink *batch, uint16_t type, uint32_t value)
{
    netlink_attr(batch, type, &value, sizeof value);
}

void netlink_be32(struct netlink *batch, uint16_t type, uint32_t value)
{
    netlink_u32(batch, type, htonl(value));
}

size_t netlink_nest(struct netlink *batch, uint16_t type)
{
    size_t at = batch->bytes.len;

    netlink_attr(batch, type | NLA_F_NESTED, NULL, 0);
    return at;
}

void netlink_nest_end(struct netlink *batch, size_t nest)
{
    uint16_t len = (uint16_t)(batch->bytes.len - nest);

    if (!batch->bytes.overflowed)
        memcpy(batch->bytes.data + nest + offsetof(struct nlattr, nla_len), &len, sizeof len);
}

/* ---- sending ---- */

/* The kernel's words about an error, from the attributes behind it; "" when there are none. */
static const char *words_of(const struct nlmsghdr *answer)
{
    const struct nlmsgerr *error = NLMSG_DATA(answer);
    size_t at = NLMSG_LENGTH(sizeof *error);
    const char *bytes = (const char *)answer;

    if (!(answer->nlmsg_flags & NLM_F_ACK_TLVS))
        return "";
    if (!(answer->nlmsg_flags & NLM_F_CAPPED))
        at += NLMSG_ALIGN(error->msg.nlmsg_len) - sizeof error->msg;
    while (at + NLA_HDRLEN <= answer->nlmsg_len) {
        struct nlattr attr;
        memcpy(&attr, bytes + at, sizeof attr);
        if (attr.nla_len <= NLA_HDRLEN || at + attr.nla_len > answer->nlmsg_len)
            break;
        if (attr.nla_type == NLMSGERR_ATTR_MSG && bytes[at + attr.nla_len - 1] == '\0')
            return bytes + at + NLA_HDRLEN;
        at += NLA_ALIGN(attr.nla_len);
    }
    return "";
}

/* True: it is an answer, and says yes. */
static bool read_answer(const struct nlmsghdr *answer, struct err *err)
{
    const struct nlmsgerr *error = NLMSG_DATA(answer);

    if (answer->nlmsg_type != NLMSG_ERROR || answer->nlmsg_len < NLMSG_LENGTH(sizeof *error))
        return err_set(err, ERR_INTERNAL, "netlink: unexpected answer of type %u", answer->nlmsg_type);
    if (!error->error)
        return true;
    const char *words = words_of(answer);
    return err_sys_num(err, -error->error, "netlink message %u (type %#x)%s%s", error->msg.nlmsg_seq,
                       error->msg.nlmsg_type, words[0] ? ": " : "", words);
}

/* The kernel has carried out everything when send() returns, so all answers are there: nothing waits here. */
static bool read_answers(int fd, struct err *err)
{
    union {
        struct nlmsghdr align;
        char bytes[ANSWER_BYTES];
    } room;
    bool answered = false;

    for (;;) {
        ssize_t n = recv(fd, room.bytes, sizeof room.bytes, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0)
            return err_sys(err, "read an answer of netlink");
        int left = (int)n;
        for (const struct nlmsghdr *answer = &room.align; NLMSG_OK(answer, (unsigned)left);
             answer = NLMSG_NEXT(answer, left)) {
            if (!read_answer(answer, err))
                return false;
            answered = true;
        }
    }
    return answered || err_set(err, ERR_INTERNAL, "netlink gave no answer");
}

bool netlink_send(const struct netlink *batch, struct err *err)
{
    const struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
    const int on = 1;

    if (batch->bytes.overflowed)
        return err_set(err, ERR_INTERNAL, "a netlink batch is too long");
    auto_close int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, batch->protocol);
    if (fd < 0)
        return err_sys(err, "make a netlink socket");
    /* Words instead of a copy of the message that failed. Without it only the errno is known. */
    (void)setsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof on);
    (void)setsockopt(fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof on);
    if (sendto(fd, batch->bytes.data, batch->bytes.len, 0, (const struct sockaddr *)&kernel, sizeof kernel) < 0)
        return err_sys(err, "send to netlink");
    return read_answers(fd, err);
}
