/*
 * Tests the calls that the examples do not use. A server and two clients run in turn in one
 * process:
 *
 *   calls ADDRESS:PORT RUN-DIR tcp|udp
 *
 * A request is a letter and a length. The letter selects the call with which the server answers:
 *
 *   s   msk_send              f   msk_sendfilev
 *   b   msk_sendbulk, with all queued events of this kind
 *   u   an upload; the input continuation has its count and sum
 *
 * msk_flush is never called: msk_timeout is 0 while packets are queued, and msk_turn sends them.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "viaduct_trickles.h"

#define CHECK(what)                                                          \
    do {                                                                     \
        if (!(what)) {                                                       \
            fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #what); \
            exit(1);                                                         \
        }                                                                    \
    } while (0)

enum { MOST = 16, LONGEST = 200000, CLIENTS = 2, EACH = 4, STREAMS = 3 * EACH };

/* State in a continuation. */
struct state {
    uint64_t letter, length, sum;
};

static int server, clients[CLIENTS];
static uint64_t connections[CLIENTS];
static unsigned calls[256];
static FILE *file;
/* Bytes of the answers, by letter; the bytes of `f` are also in the file. */
static uint8_t made[256][LONGEST];

static void make(void) {
    for (const char *letter = "sfb"; *letter; letter++)
        for (int n = 0; n < LONGEST; n++)
            made[(uint8_t)*letter][n] = (uint8_t)((n * 31 + *letter) % 251);
    file = tmpfile();
    CHECK(file && fwrite(made['f'], 1, LONGEST, file) == LONGEST && fflush(file) == 0);
}

/* ---- the server ---- */

static uint8_t told[16];

/* Counts and sums the bytes of an upload; at its end the two numbers are the output. */
static struct state uploaded(minisock *msk, int n, const struct msk_input *in) {
    struct state known = {'u', 0, 0};
    const uint8_t *bytes = in->data;
    size_t skip = in->position == 0;
    if (in->position > 0) {
        CHECK(in->state_length == sizeof known);
        memcpy(&known, in->state, sizeof known);
    }
    known.length += in->length - skip;
    for (size_t at = skip; at < in->length; at++)
        known.sum = known.sum * 31 + bytes[at];
    if (in->ends) {
        CHECK(msk_closed(msk, n) == 0);
        CHECK(msk_set_output(msk, in->stream, in->start, in->start + 16, 1, &known, sizeof known) == 0);
        memcpy(told, &known.length, 16);
    } else {
        CHECK(msk_set_input(msk, n, in->length, &known, sizeof known) == 0);
        known.letter = 0;
    }
    return known;
}

/* Parses a request; the letter is 0 if nothing is to be sent yet. */
static struct state wanted(minisock *msk, int n, const struct msk_input *in) {
    struct state said = {0, 0, 0};
    if (in->position > 0 || *(const uint8_t *)in->data == 'u')
        return uploaded(msk, n, in);
    CHECK(in->length == 9 && in->ends);
    said.letter = *(const uint8_t *)in->data;
    memcpy(&said.length, (const uint8_t *)in->data + 1, 8);
    CHECK(said.length <= LONGEST && said.length == in->reserve);
    CHECK(msk_closed(msk, n) == 0);
    uint64_t end = in->start + said.length;
    CHECK(msk_set_output(msk, in->stream, in->start, end, 1, &said, sizeof said) == 0);
    return said;
}

/* Sends the ranges of the file that are asked for; without asks, the entire file. */
static void send_file(minisock *msk, const struct msk_ask *asks, int asked, const struct msk_input *in) {
    fiovec pieces[MOST];
    int count = 0;
    for (int n = 0; n < asked; n++) {
        struct state known;
        memcpy(&known, asks[n].state, sizeof known);
        if (known.letter != 'f')
            continue;
        uint64_t from = asks[n].position - asks[n].start;
        int ends = asks[n].position + asks[n].length == asks[n].end;
        struct msk_range range = {asks[n].ask, asks[n].stream, asks[n].position, ends};
        pieces[count++] = (fiovec){range, fileno(file), from, asks[n].length};
    }
    if (asked == 0) {
        struct msk_range range = {-1, in->stream, in->start, 1};
        pieces[count++] = (fiovec){range, fileno(file), 0, in->reserve};
    }
    CHECK(msk_sendfilev(server, msk, pieces, count) == 0);
}

static void answer(minisock *msk, mskdesc *bulk, int *waiting) {
    struct msk_input ins[MOST];
    struct msk_ask asks[MOST];
    struct state first = {0, 0, 0};
    const struct msk_input *of = ins;
    if (msk_kind(msk) == MSK_CLOSE) {
        calls['c']++;
        CHECK(msk_drop(server, msk) == 0);
        return;
    }
    int came = msk_inputs(msk, ins, MOST), asked = msk_asks(msk, asks, MOST);
    CHECK(came <= MOST && asked <= MOST);
    for (int n = 0; n < came; n++) {
        struct state said = wanted(msk, n, &ins[n]);
        if (first.letter == 0) {
            first = said;
            of = &ins[n];
        }
    }
    uint64_t from = 0;
    if (asked > 0) {
        CHECK(asks[0].state_length == sizeof first);
        memcpy(&first, asks[0].state, sizeof first);
        from = asks[0].position - asks[0].start;
        /* The state of an upload contains its answer. */
        if (first.letter == 'u')
            memcpy(told, &first.length, 16);
    }
    const uint8_t *bytes = first.letter == 'u' ? told : made[first.letter];
    size_t length = (size_t)(first.letter == 'u' ? 16 : first.length);
    calls[first.letter]++;
    if (first.letter == 'f')
        send_file(msk, asks, asked, of);
    else if (first.letter == 'b' && *waiting < MOST)
        bulk[(*waiting)++] = (mskdesc){msk, bytes + from, length - from};
    else
        CHECK(msk_send(server, msk, bytes + from, length - from) == 0);
}

/* Checks that all events of a client's connection have the same number. */
static void know(const minisock *msk) {
    uint64_t number = msk_connection(msk);
    for (int n = 0; n < CLIENTS; n++) {
        if (connections[n] == 0)
            connections[n] = number;
        if (connections[n] == number)
            return;
    }
    CHECK(!"there are two connections");
}

static void serve(void) {
    mskdesc bulk[MOST];
    int waiting = 0, came = msk_turn(server);
    CHECK(came >= 0);
    for (minisock *msk; (msk = msk_next_event(server));) {
        know(msk);
        /* A call with a client's fd fails, but consumes the minisocket: the request is lost. */
        if (msk_kind(msk) == MSK_REQUEST && calls['!']++ == 0)
            CHECK(msk_send(clients[0], msk, "x", 1) == -EOPNOTSUPP);
        else
            answer(msk, bulk, &waiting);
    }
    if (waiting > 0)
        CHECK(msk_sendbulk(server, bulk, waiting) == waiting);
}

/* ---- clients ---- */

struct want {
    int client, stream, done;
    uint8_t letter;
    uint64_t length, at;
};

static int request(int fd, uint8_t letter, uint64_t length) {
    uint8_t text[9] = {letter};
    memcpy(text + 1, &length, 8);
    int stream = msk_request(fd, text, sizeof text, length);
    CHECK(stream > 0);
    return stream;
}

/* Reads the bytes that have arrived on a stream. Returns true if the stream has ended. */
static int reads(struct want *want) {
    static uint8_t chunk[5000];
    int got;
    while ((got = msk_read(want->client, want->stream, chunk, sizeof chunk)) > 0) {
        CHECK(want->at + (uint64_t)got <= want->length);
        CHECK(memcmp(chunk, made[want->letter] + want->at, (size_t)got) == 0);
        want->at += (uint64_t)got;
    }
    CHECK(got == 0 || got == -EAGAIN);
    CHECK(got != 0 || want->at == want->length);
    return got == 0;
}

/* Sleeps until an end has something to do, with the timeout of msk_timeout. */
static void sleep_a_while(void) {
    struct pollfd ready[CLIENTS + 1] = {{server, POLLIN, 0}};
    int shortest = msk_timeout(server);
    for (int n = 0; n < CLIENTS; n++) {
        int left = msk_timeout(clients[n]);
        ready[n + 1] = (struct pollfd){clients[n], POLLIN, 0};
        if (left >= 0 && left < shortest)
            shortest = left;
    }
    poll(ready, CLIENTS + 1, shortest);
}

static void turn(void) {
    sleep_a_while();
    serve();
    for (int n = 0; n < CLIENTS; n++)
        CHECK(msk_turn(clients[n]) >= 0);
}

static void fetch(void) {
    static struct want wants[CLIENTS * STREAMS];
    int left = CLIENTS * STREAMS;
    for (int n = 0; n < left; n++) {
        uint8_t letter = (uint8_t)"sfb"[n % 3];
        uint64_t length = n < 6 ? 100 : 1000 + (uint64_t)n * 5000;
        int client = clients[n % CLIENTS];
        wants[n] = (struct want){client, request(client, letter, length), 0, letter, length, 0};
    }
    while (left > 0) {
        turn();
        for (int n = 0; n < CLIENTS * STREAMS; n++) {
            struct want *want = &wants[n];
            if (want->done || !reads(want))
                continue;
            want->done = 1;
            left--;
            CHECK(msk_forget(want->client, want->stream) == 0);
            CHECK(msk_read(want->client, want->stream, told, 1) == -EINVAL);
        }
    }
    CHECK(calls['s'] > 0 && calls['f'] > 0 && calls['b'] > 0);
    CHECK(connections[0] != connections[1] && connections[1] != 0);
}

/* Uploads on a stream that is opened with msk_begin and written in pieces. */
static void upload(int fd) {
    enum { LENGTH = 3000000 };
    static uint8_t bytes[LENGTH + 1];
    struct state expected = {'u', LENGTH, 0};
    uint8_t said[16];
    size_t written = 0, got = 0;
    bytes[0] = 'u';
    for (int n = 1; n <= LENGTH; n++) {
        bytes[n] = (uint8_t)(n * 7 % 253);
        expected.sum = expected.sum * 31 + bytes[n];
    }
    int stream = msk_begin(fd, sizeof said), refused = 0;
    CHECK(stream > 0);
    while (got < sizeof said) {
        int taken = 1;
        while (written < sizeof bytes && taken > 0) {
            size_t rest = sizeof bytes - written, piece = rest < 7000 ? rest : 7000;
            taken = msk_write(fd, stream, bytes + written, piece);
            CHECK(taken > 0 || taken == -EAGAIN);
            refused += taken < 0;
            written += taken > 0 ? (size_t)taken : 0;
            if (written == sizeof bytes) {
                CHECK(msk_shutdown(fd, stream) == 0);
                CHECK(msk_write(fd, stream, "x", 1) == -EPIPE);
            }
        }
        turn();
        int more = msk_read(fd, stream, said + got, sizeof said - got);
        CHECK(more > 0 || more == -EAGAIN);
        got += more > 0 ? (size_t)more : 0;
    }
    CHECK(memcmp(said, &expected.length, sizeof said) == 0);
    CHECK(refused > 0);
    CHECK(msk_forget(fd, stream) == 0 && msk_shutdown(fd, stream) == -EINVAL);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    struct msk_options options = {0};
    CHECK(argc == 4);
    options.run_dir = argv[2];
    options.ways = strcmp(argv[3], "udp") == 0 ? MSK_UDP : MSK_TCP;
    make();
    server = msk_listen(argv[1], &options);
    CHECK(server >= 0);
    for (int n = 0; n < CLIENTS; n++) {
        clients[n] = msk_connect(argv[1], &options);
        CHECK(clients[n] >= 0);
    }
    fetch();
    upload(clients[1]);
    struct want small = {clients[0], 0, 0, 's', 300, 0};
    double start = now();
    for (int n = 0; n < 20; n++) {
        small.at = 0;
        small.stream = request(small.client, 's', small.length);
        while (!reads(&small))
            turn();
    }
    /* Packets are not delayed although there are no explicit flushes. */
    CHECK(now() - start < 1);
    for (int n = 0; n < CLIENTS; n++)
        CHECK(msk_close(clients[n]) == 0 && msk_close(clients[n]) == -EBADF);
    while (calls['c'] < CLIENTS) {
        struct pollfd ready = {server, POLLIN, 0};
        CHECK(poll(&ready, 1, 2000) == 1);
        serve();
    }
    CHECK(msk_close(server) == 0);
    printf("all calls\n");
    return 0;
}
