/* Makes the calls around a connect in different orders. Prints one line of results for each order.
 *
 *   orders FAMILY OPEN CLOSED FULL LATE LATE LATE LATE LATE LATE
 *
 * FAMILY is 4, 6, or 46 (IPv4 by an IPv6 socket). The others are ports on the loopback interface:
 * OPEN has a listener that accepts, CLOSED has no listener, FULL has one with a full backlog, and
 * each LATE has one that accepts when this program prints "late PORT".
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int family;
static char line[1024];

/* Adds a word to the line. */
static void add(const char *format, ...)
{
    va_list list;
    size_t at = strlen(line);
    va_start(list, format);
    vsnprintf(line + at, sizeof line - at, format, list);
    va_end(list);
}

static void begin(const char *name)
{
    snprintf(line, sizeof line, "%s:", name);
}

static void end(void)
{
    puts(line);
    fflush(stdout);
}

/* Adds the result of a call. */
static int word(const char *call, int result)
{
    int number = errno;
    add(" %s=%s", call, result < 0 ? strerrorname_np(number) : "0");
    errno = number;
    return result;
}

static socklen_t address(struct sockaddr_storage *at, int port)
{
    memset(at, 0, sizeof *at);
    if (family == 4) {
        struct sockaddr_in *v4 = (void *)at;
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return sizeof *v4;
    }
    struct sockaddr_in6 *v6 = (void *)at;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    inet_pton(AF_INET6, family == 6 ? "::1" : "::ffff:127.0.0.1", &v6->sin6_addr);
    return sizeof *v6;
}

static int open_socket(int flags)
{
    return socket(family == 4 ? AF_INET : AF_INET6, SOCK_STREAM | flags, 0);
}

static int connect_to(int fd, int port)
{
    struct sockaddr_storage at;
    socklen_t length = address(&at, port);
    return word("connect", connect(fd, (void *)&at, length));
}

static void disconnect(int fd)
{
    struct sockaddr none = { .sa_family = AF_UNSPEC };
    word("disconnect", connect(fd, &none, sizeof none));
}

static void error_of(int fd)
{
    int value = -1;
    socklen_t length = sizeof value;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &length) < 0)
        add(" SO_ERROR:%s", strerrorname_np(errno));
    else
        add(" SO_ERROR=%s", value ? strerrorname_np(value) : "0");
}

/* Adds whether the address of the peer is the expected one. */
static void peer(int fd, int port)
{
    struct sockaddr_storage at, expected;
    socklen_t length = sizeof at, size = address(&expected, port);
    int result = word("getpeername", getpeername(fd, (void *)&at, &length));
    if (result == 0)
        add("%s", length == size && memcmp(&at, &expected, size) == 0 ? "(right)" : "(wrong)");
}

static void polled(int fd, int wait)
{
    struct pollfd at = { .fd = fd, .events = POLLIN | POLLOUT };
    poll(&at, 1, wait);
    /* By seccomp and preload a refusal arrives in two steps. The first may be visible alone for
     * some microseconds. */
    if (at.revents & POLLERR) {
        usleep(20000);
        poll(&at, 1, 0);
    }
    add(" poll=%s%s%s%s", at.revents & POLLIN ? "I" : "", at.revents & POLLOUT ? "O" : "",
        at.revents & POLLERR ? "E" : "", at.revents & POLLHUP ? "H" : "");
}

static void limit(int fd, int millis)
{
    struct timeval limit = { .tv_sec = millis / 1000, .tv_usec = millis % 1000 * 1000 };
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static void block(int fd, int blocks)
{
    int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, blocks ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

/* Connects, and adds whether the connect took about `seconds`, the limit. */
static void connect_within(int fd, int port, double seconds)
{
    double from = now();
    connect_to(fd, port);
    double took = now() - from;
    add("%s", took > 0.9 * seconds && took < seconds + 1 ? "(in time)" : "(early or late)");
}

static void ask(int port)
{
    printf("late %d\n", port);
    fflush(stdout);
}

static void quiet(int number)
{
    (void)number;
}

/* Raises a signal periodically. */
static void alarms(int flags, long micros)
{
    struct sigaction act = { .sa_handler = quiet, .sa_flags = flags };
    struct itimerval each = { { 0, micros }, { 0, micros } };
    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_REAL, &each, NULL);
}

/* Takes all remaining descriptors. */
static int fill(int *list, int most)
{
    int count = 0;
    while (count < most && (list[count] = dup(0)) >= 0)
        count++;
    return count;
}

int main(int argc, char **argv)
{
    if (argc < 11)
        return 2;
    family = atoi(argv[1]);
    int open_port = atoi(argv[2]), closed = atoi(argv[3]), full = atoi(argv[4]), fd;
    char **late = argv + 5;

    begin("blocking");
    fd = open_socket(0);
    connect_to(fd, open_port), connect_to(fd, open_port), error_of(fd), peer(fd, open_port), polled(fd, 0);
    close(fd), end();

    begin("non-blocking");
    fd = open_socket(SOCK_NONBLOCK);
    connect_to(fd, open_port), polled(fd, 3000), error_of(fd), connect_to(fd, open_port);
    connect_to(fd, open_port), connect_to(fd, closed), peer(fd, open_port), error_of(fd);
    close(fd), end();

    begin("non-blocking, then immediately blocking");
    fd = open_socket(SOCK_NONBLOCK);
    connect_to(fd, open_port), polled(fd, 3000), block(fd, 1), connect_to(fd, open_port);
    connect_to(fd, open_port);
    close(fd), end();

    begin("in progress");
    fd = open_socket(SOCK_NONBLOCK);
    connect_to(fd, full), connect_to(fd, full), connect_to(fd, open_port), error_of(fd), peer(fd, full);
    polled(fd, 0), word("write", write(fd, "x", 1)), word("read", read(fd, line + 900, 1));
    word("listen", listen(fd, 1)), word("accept", accept(fd, NULL, NULL));
    close(fd), end();

    begin("refused twice");
    fd = open_socket(0);
    connect_to(fd, closed), error_of(fd), polled(fd, 0), connect_to(fd, closed), connect_to(fd, open_port);
    connect_to(fd, open_port);
    close(fd), end();

    begin("refused, non-blocking");
    fd = open_socket(SOCK_NONBLOCK);
    connect_to(fd, closed), polled(fd, 3000), error_of(fd), error_of(fd), connect_to(fd, closed);
    connect_to(fd, closed), polled(fd, 3000), error_of(fd), peer(fd, closed);
    close(fd), end();

    begin("refused, not asked");
    fd = open_socket(SOCK_NONBLOCK);
    connect_to(fd, closed), polled(fd, 3000), connect_to(fd, open_port), error_of(fd), connect_to(fd, open_port);
    polled(fd, 3000), connect_to(fd, open_port), connect_to(fd, open_port), peer(fd, open_port);
    close(fd), end();

    begin("refused, then blocking");
    fd = open_socket(SOCK_NONBLOCK);
    connect_to(fd, closed), polled(fd, 3000), block(fd, 1), connect_to(fd, open_port), connect_to(fd, open_port);
    connect_to(fd, open_port);
    close(fd), end();

    begin("refused, then written to");
    signal(SIGPIPE, SIG_IGN);
    fd = open_socket(SOCK_NONBLOCK);
    connect_to(fd, closed), polled(fd, 3000), word("write", write(fd, "x", 1)), error_of(fd);
    word("write", write(fd, "x", 1));
    close(fd), end();

    begin("poll before");
    fd = open_socket(SOCK_NONBLOCK);
    polled(fd, 0), error_of(fd), peer(fd, open_port), connect_to(fd, open_port), polled(fd, 3000);
    connect_to(fd, open_port);
    close(fd), end();

    begin("epoll before");
    {
        struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLET }, came = { 0 };
        int watch = epoll_create1(0);
        fd = open_socket(SOCK_NONBLOCK);
        word("epoll", epoll_ctl(watch, EPOLL_CTL_ADD, fd, &event));
        connect_to(fd, open_port), polled(fd, 3000);
        int count = epoll_wait(watch, &came, 1, 3000);
        add(" epoll=%d,%x", count, came.events), connect_to(fd, open_port);
        close(watch), close(fd), end();
    }

    begin("time limit");
    fd = open_socket(0);
    limit(fd, 300);
    connect_within(fd, full, 0.3), connect_within(fd, full, 0.3), error_of(fd), peer(fd, full);
    block(fd, 0), connect_to(fd, full);
    close(fd), end();

    begin("time limit, accepted");
    fd = open_socket(0);
    limit(fd, 5000);
    connect_to(fd, open_port), connect_to(fd, open_port);
    close(fd), end();

    begin("time limit, refused");
    fd = open_socket(0);
    limit(fd, 5000);
    connect_to(fd, closed), error_of(fd), connect_to(fd, closed), connect_to(fd, open_port);
    close(fd), end();

    begin("time limit, accepted too late");
    fd = open_socket(0);
    limit(fd, 200);
    connect_within(fd, atoi(late[0]), 0.2), ask(atoi(late[0])), polled(fd, 8000), error_of(fd);
    connect_to(fd, atoi(late[0])), connect_to(fd, atoi(late[0])), peer(fd, atoi(late[0]));
    close(fd), end();

    begin("non-blocking, then blocking");
    fd = open_socket(SOCK_NONBLOCK);
    connect_to(fd, atoi(late[1])), block(fd, 1), ask(atoi(late[1])), connect_to(fd, atoi(late[1]));
    connect_to(fd, atoi(late[1])), peer(fd, atoi(late[1]));
    close(fd), end();

    begin("signals that restart");
    alarms(SA_RESTART, 100000);
    fd = open_socket(0);
    ask(atoi(late[2])), connect_to(fd, atoi(late[2])), connect_to(fd, atoi(late[2])), peer(fd, atoi(late[2]));
    alarms(SA_RESTART, 0);
    close(fd), end();

    begin("signals that interrupt");
    alarms(0, 200000);
    fd = open_socket(0);
    connect_to(fd, atoi(late[3]));
    alarms(0, 0);
    ask(atoi(late[3])), polled(fd, 8000), error_of(fd), connect_to(fd, atoi(late[3]));
    connect_to(fd, atoi(late[3]));
    close(fd), end();

    begin("disconnected and connected elsewhere, before the first answers");
    fd = open_socket(SOCK_NONBLOCK);
    connect_to(fd, atoi(late[4])), disconnect(fd), connect_to(fd, atoi(late[5])), ask(atoi(late[4]));
    polled(fd, 2000), peer(fd, atoi(late[5])), ask(atoi(late[5])), polled(fd, 8000), error_of(fd);
    connect_to(fd, atoi(late[5])), connect_to(fd, atoi(late[5])), peer(fd, atoi(late[5]));
    close(fd), end();

    begin("signals and a time limit");
    alarms(SA_RESTART, 200000);
    fd = open_socket(0);
    limit(fd, 3000);
    connect_to(fd, full);
    alarms(0, 0);
    close(fd), end();

    begin("listener");
    {
        struct sockaddr_storage at;
        socklen_t length = address(&at, 0);
        int listener = open_socket(0), client = open_socket(0);
        word("bind", bind(listener, (void *)&at, length)), word("listen", listen(listener, 5));
        connect_to(listener, open_port);
        length = sizeof at;
        getsockname(listener, (void *)&at, &length);
        word("connect", connect(client, (void *)&at, length));
        fd = accept(listener, NULL, NULL);
        word("accept", fd), connect_to(fd, open_port), word("listen", listen(fd, 1)), connect_to(listener, closed);
        close(fd), close(client), close(listener), end();
    }

    begin("disconnected while in progress");
    fd = open_socket(SOCK_NONBLOCK);
    connect_to(fd, full), disconnect(fd), peer(fd, full), error_of(fd), connect_to(fd, open_port);
    polled(fd, 3000), connect_to(fd, open_port), peer(fd, open_port);
    close(fd), end();

    begin("disconnected and connected again");
    fd = open_socket(0);
    connect_to(fd, open_port), disconnect(fd), peer(fd, open_port), connect_to(fd, open_port), peer(fd, open_port);
    close(fd), end();

    begin("not a socket, or not an address");
    {
        struct sockaddr_storage at, other = { 0 };
        socklen_t length = address(&at, open_port);
        int pipes[2];
        word("pipe", pipe(pipes));
        word("connect", connect(-1, (void *)&at, length)), word("connect", connect(1000, (void *)&at, length));
        word("connect", connect(pipes[0], (void *)&at, length)), word("connect", connect(-1, (void *)8, length));
        fd = open_socket(0);
        word("connect", connect(fd, (void *)8, length)), word("connect", connect(fd, (void *)&at, 0));
        word("connect", connect(fd, (void *)&at, 200)), word("connect", connect(fd, (void *)&at, 8));
        other.ss_family = family == 4 ? AF_INET6 : AF_INET;
        word("connect", connect(fd, (void *)&other, 28)), word("connect", connect(fd, (void *)&other, 16));
        connect_to(fd, open_port);
        close(pipes[0]), close(pipes[1]), close(fd), end();
    }

    begin("a full descriptor table");
    {
        static int taken[256];
        struct rlimit most = { 64, 64 };
        int other = open_socket(0), third = open_socket(SOCK_NONBLOCK);
        fd = open_socket(0);
        setrlimit(RLIMIT_NOFILE, &most);
        int count = fill(taken, 256);
        connect_to(fd, open_port), peer(fd, open_port), connect_to(other, closed), connect_to(third, closed);
        polled(third, 3000), error_of(third), error_of(third), connect_to(other, open_port);
        while (count > 0)
            close(taken[--count]);
        close(third), close(other), close(fd), end();
    }
    return 0;
}
