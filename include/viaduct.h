/*
 * Programs that know of their handlers: they ask them, and are told what they say.
 *
 * A program that is not run by `viaduct run`, or whose flow passes no handler, loses nothing by asking: no
 * call fails for that, and each says that there is nobody. There is no library: this file is all of it.
 *
 *     int events = viaduct_watch(fd);        // poll() passes over -1
 *     viaduct_control(fd, "migrate", "retry", 5, NULL, 0);
 *
 * Linux, C99 and later, C++.
 */
#ifndef VIADUCT_H
#define VIADUCT_H

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a request with its handler's name, and of an answer or an event, at most. */
#define VIADUCT_MOST 4096

/* Whether this program is wrapped; it may yet have flows that pass no handler. */
static inline int viaduct_is_wrapped(void)
{
    return getenv("VIADUCT_CONTROL") != NULL;
}

/* Says `length` bytes of `words`, with the socket `flow`: where the answer comes; -1 with errno 0 if there
 * is nobody, else errno says what is wrong. */
static inline int viaduct_ask_(int flow, const void *words, size_t length)
{
    struct sockaddr_un at;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } beside;
    struct iovec pieces[2];
    struct msghdr message;
    unsigned char secret[16];
    const char *name = getenv("VIADUCT_CONTROL");
    const char *digits = name == NULL ? NULL : strchr(name, ';');
    size_t long_is, n;
    int desk, why;

    errno = 0;
    if (digits == NULL || name[0] != '@' || (size_t)(digits - name) >= sizeof(at.sun_path))
        return -1;
    long_is = (size_t)(digits - name);
    if (strlen(++digits) != 2 * sizeof(secret))
        return -1;
    for (n = 0; n < 2 * sizeof(secret); n++) {
        const char *all = "0123456789abcdef", *digit = strchr(all, digits[n]);
        if (digit == NULL)
            return -1;
        secret[n / 2] = (unsigned char)((n % 2 ? secret[n / 2] << 4 : 0) | (digit - all));
    }
    desk = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (desk < 0)
        return -1;
    memset(&at, 0, sizeof(at));
    at.sun_family = AF_UNIX;
    memcpy(at.sun_path + 1, name + 1, long_is - 1);
    if (connect(desk, (struct sockaddr *)&at, offsetof(struct sockaddr_un, sun_path) + long_is) < 0) {
        why = errno == ECONNREFUSED ? 0 : errno;
        close(desk);
        errno = why;
        return -1;
    }
    memset(&beside, 0, sizeof(beside));
    beside.header.cmsg_level = SOL_SOCKET;
    beside.header.cmsg_type = SCM_RIGHTS;
    beside.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&beside.header), &flow, sizeof(int));
    pieces[0].iov_base = secret;
    pieces[0].iov_len = sizeof(secret);
    pieces[1].iov_base = (void *)words;
    pieces[1].iov_len = length;
    memset(&message, 0, sizeof(message));
    message.msg_iov = pieces;
    message.msg_iovlen = 2;
    message.msg_control = &beside;
    message.msg_controllen = sizeof(beside.room);
    if (sendmsg(desk, &message, MSG_NOSIGNAL) < 0) {
        why = errno;
        close(desk);
        errno = why;
        return -1;
    }
    return desk;
}

/* Asks `handler`, of the flow whose socket `flow` is, by a control call. Its answer is put into `answer`, cut
 * to `room` bytes. Returns its length; 0 if nobody answers; -1 if the call fails, with errno. */
static inline ssize_t viaduct_control(int flow, const char *handler, const void *request, size_t length,
                                      void *answer, size_t room)
{
    unsigned char words[VIADUCT_MOST];
    size_t name = strlen(handler);
    ssize_t said;
    int desk, why;

    if (name > 255 || length > sizeof(words) - 3 - name) {
        errno = E2BIG;
        return -1;
    }
    words[0] = 1;
    words[1] = 1;
    words[2] = (unsigned char)name;
    memcpy(words + 3, handler, name);
    if (length > 0)
        memcpy(words + 3 + name, request, length);
    desk = viaduct_ask_(flow, words, 3 + name + length);
    if (desk < 0)
        return errno == 0 ? 0 : -1;
    said = recv(desk, words, sizeof(words), 0);
    why = errno;
    close(desk);
    errno = why;
    if (said < 0)
        return -1;
    if (said == 0 || words[0] != 1)
        return 0;
    said -= 1;
    if (answer != NULL)
        memcpy(answer, words + 1, (size_t)said < room ? (size_t)said : room);
    return said;
}

/* A descriptor that is readable when a handler of the flow whose socket `flow` is has said something: each
 * recv() takes one event of at most VIADUCT_MOST bytes, and 0 when the flow is over. -1 if there is nobody
 * (errno is 0), or if the call fails. */
static inline int viaduct_watch(int flow)
{
    static const unsigned char words[3] = {1, 2, 0};
    unsigned char said;
    int desk = viaduct_ask_(flow, words, sizeof(words));

    if (desk < 0)
        return -1;
    if (recv(desk, &said, 1, 0) == 1)
        return desk;
    close(desk);
    errno = 0;
    return -1;
}

#ifdef __cplusplus
}
#endif

#endif
