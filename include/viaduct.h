/*
 * Lets a program talk to the handlers of its own flows: it sends them requests and receives their
 * events.
 *
 * In a program that is not run by `viaduct run`, or for a flow without handlers, the calls do not
 * fail, but report that there is no handler. This header needs no library.
 *
 *     int events = viaduct_watch(fd);        // poll() ignores -1
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

/* Maximum length in bytes of a message. An event has at most these; an answer has one byte less; a
 * request and its handler's name together have three less. */
#define VIADUCT_MOST 4096

/* Returns true if this program is wrapped. Some flows of a wrapped program may have no handlers. */
static inline int viaduct_is_wrapped(void)
{
    return getenv("VIADUCT_CONTROL") != NULL;
}

/* Sends `length` bytes of `words`, and a duplicate of the socket `flow`, to the master. Returns the
 * descriptor on which the answer arrives. On failure returns -1 with errno set; errno is 0 if the
 * program is not wrapped. */
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
    int control, why;

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
    control = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (control < 0)
        return -1;
    memset(&at, 0, sizeof(at));
    at.sun_family = AF_UNIX;
    memcpy(at.sun_path + 1, name + 1, long_is - 1);
    if (connect(control, (struct sockaddr *)&at, offsetof(struct sockaddr_un, sun_path) + long_is) < 0) {
        why = errno == ECONNREFUSED ? 0 : errno;
        close(control);
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
    if (sendmsg(control, &message, MSG_NOSIGNAL) < 0) {
        why = errno;
        close(control);
        errno = why;
        return -1;
    }
    return control;
}

/* Sends a control request to `handler` of the flow whose socket is `flow`. Stores the answer in
 * `answer`, truncated to `room` bytes. Returns the answer's full length; 0 if there is no answer;
 * -1 with errno set if the call fails. */
static inline ssize_t viaduct_control(int flow, const char *handler, const void *request, size_t length,
                                      void *answer, size_t room)
{
    unsigned char words[VIADUCT_MOST];
    size_t name = strlen(handler);
    ssize_t said;
    int control, why;

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
    control = viaduct_ask_(flow, words, 3 + name + length);
    if (control < 0)
        return errno == 0 ? 0 : -1;
    said = recv(control, words, sizeof(words), 0);
    why = errno;
    close(control);
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

/* Returns a descriptor that is readable when a handler of the flow whose socket is `flow` has sent
 * an event. Each recv() returns one event of at most VIADUCT_MOST bytes, or 0 bytes when the flow
 * has ended. Returns -1 if there is no handler (errno is 0), or if the call fails. */
static inline int viaduct_watch(int flow)
{
    static const unsigned char words[3] = {1, 2, 0};
    unsigned char said;
    int control = viaduct_ask_(flow, words, sizeof(words));

    if (control < 0)
        return -1;
    if (recv(control, &said, 1, 0) == 1)
        return control;
    close(control);
    errno = 0;
    return -1;
}

#ifdef __cplusplus
}
#endif

#endif
