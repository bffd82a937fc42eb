/* Attempts to bypass a run. Each prints its result. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static struct sockaddr_in at(int family, const char *port) {
    struct sockaddr_in to = {.sin_family = family, .sin_port = htons(atoi(port))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return to;
}

static void say(const char *what, long result) {
    if (result < 0) printf("%s %d\n", what, errno);
    else printf("%s done\n", what);
}

static long result_of(long result) {
    if (result >= 0) return result;
    errno = -result;
    return -1;
}

#ifdef __x86_64__
static long i386(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory", "r8", "r9", "r10", "r11");
    return result_of((int)result);
}
#endif

/* Opens sockets of a family, a kind and a protocol, by every call number of socket(2). */
static int machines(char **words) {
    int family = atoi(words[0]), kind = atoi(words[1]), protocol = atoi(words[2]);
    say("native", socket(family, kind, protocol));
#ifdef __x86_64__
    unsigned *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    low[0] = family, low[1] = kind, low[2] = protocol;
    say("socketcall", i386(102, 1, (long)low, 0));
    say("i386", i386(359, family, kind, protocol));
    say("x32", syscall(0x40000000 | SYS_socket, family, kind, protocol));
#endif
    return 0;
}

/* Sends datagrams whose address has no family, by each call; one with an ordinary address first. */
static int unspecified(char **words) {
    struct sockaddr_in plain = at(AF_INET, words[0]), odd = at(AF_UNSPEC, words[0]);
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    say("plain", sendto(s, "plain", 5, 0, (void *)&plain, sizeof plain));
    say("sendto", sendto(s, "sendto", 6, 0, (void *)&odd, sizeof odd));
    struct iovec pieces[] = {{"send", 4}, {"msg", 3}};
    struct msghdr head = {.msg_name = &odd, .msg_namelen = sizeof odd, .msg_iov = pieces, .msg_iovlen = 2};
    say("sendmsg", sendmsg(s, &head, 0));
    struct mmsghdr many[2] = {{.msg_hdr = head}, {.msg_hdr = head}};
    int sent = sendmmsg(s, many, 2, 0);
    say("sendmmsg", sent);
    if (sent == 2) printf("lengths %u %u\n", many[0].msg_len, many[1].msg_len);
    return 0;
}

static volatile union { struct sockaddr_in in; struct sockaddr_un un; unsigned long first[2]; } checked;
static unsigned long in[2], un[2];
static int tcp, local;

static void *change(void *ignored) {
    unsigned seed = 1;
    for (;;) {
        dup2(local, 100);
        checked.first[0] = un[0], checked.first[1] = un[1];
        for (volatile int n = rand_r(&seed) % 20000; n > 0; n--);
        dup2(tcp, 100);
        checked.first[0] = in[0], checked.first[1] = in[1];
        for (volatile int n = rand_r(&seed) % 20000; n > 0; n--);
    }
    return ignored;
}

/* Connects a descriptor repeatedly, while another thread makes it a UNIX socket and a TCP socket in
 * turn. */
static int race(char **words) {
    struct sockaddr_in to = at(AF_INET, words[0]);
    struct sockaddr_un path = {.sun_family = AF_UNIX, .sun_path = "/not-there"};
    memcpy(in, &to, 16), memcpy(un, &path, 16);
    local = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    tcp = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, change, NULL);
    for (int tries = 0, most = atoi(words[1]); tries < most; tries++) {
        syscall(SYS_connect, 100, &checked, 16);
        if (tries % 64 == 63) {      /* a socket cannot be used after a failure */
            int fresh = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
            dup2(fresh, tcp), close(fresh);
        }
    }
    puts("raced");
    fflush(stdout);
    _exit(0);
}

/* Connects to each path. */
static int paths(char **words) {
    for (; *words; words++) {
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        strncpy(to.sun_path, *words, sizeof to.sun_path - 1);
        say(*words, connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&to, sizeof to));
    }
    return 0;
}

int main(int count, char **words) {
    if (count < 2) return 2;
    if (!strcmp(words[1], "machines")) return machines(words + 2);
    if (!strcmp(words[1], "unspecified")) return unspecified(words + 2);
    if (!strcmp(words[1], "race")) return race(words + 2);
    if (!strcmp(words[1], "paths")) return paths(words + 2);
    return 2;
}
