/*
 * A server that keeps no state of its clients: it generates objects, and digests uploads.
 *
 *   get LENGTH SEED\n   an object of LENGTH bytes; byte n is (n * 31 + SEED) % 251
 *   put BYTES...        consumed in blocks of 64; the output is their FNV-1a and count, 16 bytes
 *
 *   server ADDRESSES [RUN-DIR KEY-FILE [give|take]]
 *
 * With `give` it writes every second batch of events to its standard output, for another server
 * that has the same secrets and can send from the same addresses. With `take` it reads such batches
 * from its standard input, and answers their events as well:
 *
 *   server 10.0.0.1:80 /run/a key give | server 10.0.0.2:81 /run/b key take
 *
 * A continuation of an object yields PART bytes. The packet with the last of these bytes also
 * carries the next continuation, so a client that has all bytes can ask for more.
 *
 * The state of an upload is in the input continuation, which the client keeps: 32 bytes for any
 * length of the upload. An incomplete block is not consumed; the client sends it again with more
 * bytes.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "viaduct_trickles.h"

enum { BLOCK = 64, PART = 100000, MOST_INPUTS = 8, MOST = 64, ROOM = 65536 };

static volatile sig_atomic_t stopped;

static void stop(int signal) {
    (void)signal;
    stopped = 1;
}

/* State in a continuation: the kind of request, two numbers, and the bytes of output before it. */
struct state {
    uint64_t what, first, second, before;
};
enum { GET = 1, PUT = 2 };

static uint64_t fnv(uint64_t hash, const uint8_t *bytes, size_t length) {
    for (size_t n = 0; n < length; n++)
        hash = (hash ^ bytes[n]) * 0x100000001b3u;
    return hash;
}

static void make(uint8_t *out, uint64_t from, uint64_t length, uint64_t seed) {
    for (uint64_t n = 0; n < length; n++)
        out[n] = (uint8_t)(((from + n) * 31 + seed) % 251);
}

/* "get LENGTH SEED\n": gives the client a continuation with which to ask for the bytes. */
static void get(minisock *msk, int n, const struct msk_input *in) {
    char line[80] = "";
    struct state made = {GET, 0, 0, 0};
    memcpy(line, in->data, in->length < sizeof line ? in->length : sizeof line - 1);
    if (sscanf(line, "get %lu %lu\n", &made.first, &made.second) != 2 || made.first > in->reserve) {
        msk_reset(msk, in->stream, MSK_REFUSED);
        return;
    }
    msk_closed(msk, n);
    int whole = made.first <= PART;
    uint64_t end = in->start + (whole ? made.first : PART);
    msk_set_output(msk, in->stream, in->start, end, whole, &made, sizeof made);
}

/* Returns true if an ask has the last byte of its continuation, and more output follows. */
static int needs_next(const struct msk_ask *ask) {
    return !ask->last && ask->position + ask->length == ask->end;
}

/* Puts the next continuation into the packet that answers an ask. */
static int put_next(int fd, minisock *msk, const struct msk_ask *ask) {
    struct state known;
    size_t rooms[MOST];
    int packets = msk_rooms(msk, rooms, MOST), packet = 0;
    if (ask->state_length != sizeof known)
        return 0;
    /* The packets with room answer the asks in order, one ask each. */
    for (int with_room = 0; packet < packets && packet < MOST; packet++)
        if (rooms[packet] > 0 && with_room++ == ask->ask)
            break;
    memcpy(&known, ask->state, sizeof known);
    known.before += PART;
    uint64_t left = known.first - known.before;
    int whole = left <= PART;
    return msk_setucont(fd, msk, packet, ask->stream, ask->end, ask->end + (whole ? left : PART), whole,
                        &known, sizeof known) == 0;
}

/* "put ...": consumes complete blocks; at the end of the input, everything. */
static size_t put(minisock *msk, int n, const struct msk_input *in, uint8_t *answer) {
    struct state known = {PUT, 0xcbf29ce484222325u, 0, 0};
    const uint8_t *bytes = in->data;
    size_t skip = in->position == 0 ? 4 : 0, length = in->length - skip;
    if (in->state_length == sizeof known)
        memcpy(&known, in->state, sizeof known);
    if (!in->ends)
        length -= length % BLOCK;
    known.first = fnv(known.first, bytes + skip, length);
    known.second += length;
    if (!in->ends) {
        msk_set_input(msk, n, skip + length, &known, sizeof known);
        return 0;
    }
    msk_closed(msk, n);
    msk_set_output(msk, in->stream, in->start, in->start + 16, 1, &known, sizeof known);
    memcpy(answer, &known.first, 16);
    return 16;
}

/* Computes the bytes of an ask from its continuation. */
static int again(const struct msk_ask *ask, uint8_t *out) {
    struct state known;
    uint64_t from = ask->position - ask->start;
    if (ask->state_length != sizeof known)
        return 0;
    memcpy(&known, ask->state, sizeof known);
    if (known.what == PUT)
        memcpy(out, (uint8_t *)&known.first + from, ask->length);
    else
        make(out, known.before + from, ask->length, known.second);
    return 1;
}

static void answer(int fd, minisock *msk) {
    static uint8_t bytes[ROOM];
    struct msk_input ins[MOST_INPUTS];
    struct msk_ask asks[MOST];
    tiovec pieces[MOST];
    int count = 0;
    size_t used = 0;
    if (msk_kind(msk) == MSK_CLOSE) {
        msk_drop(fd, msk);
        return;
    }
    int came = msk_inputs(msk, ins, MOST_INPUTS);
    for (int n = 0; n < came && n < MOST_INPUTS; n++) {
        const struct msk_input *in = &ins[n];
        uint8_t digest[16];
        size_t length = 0;
        if (in->position == 0 && in->length >= 4 && memcmp(in->data, "get ", 4) == 0)
            get(msk, n, in);
        else if (in->position > 0 || (in->length >= 4 && memcmp(in->data, "put ", 4) == 0))
            length = put(msk, n, in, digest);
        else
            msk_reset(msk, in->stream, MSK_REFUSED);
        /* Sends one stream's output without an ask. The client asks for the output of the others. */
        if (length > 0 && count == 0) {
            struct msk_range range = {-1, in->stream, in->start, 1};
            memcpy(bytes, digest, length);
            pieces[count++] = (tiovec){range, bytes, length};
            used = length;
        }
    }
    int there = msk_asks(msk, asks, MOST);
    for (int n = 0; n < there && n < MOST && count < MOST; n++) {
        const struct msk_ask *ask = &asks[n];
        if (ask->length > ROOM - used || !again(ask, bytes + used))
            continue;
        /* msk_setucont replaces the continuations for inputs. With inputs, this answer is left
         * out, and the client asks for it again. */
        if (needs_next(ask) && (came > 0 || !put_next(fd, msk, ask)))
            continue;
        int ends = ask->last && ask->position + ask->length == ask->end;
        struct msk_range range = {ask->ask, ask->stream, ask->position, ends};
        pieces[count++] = (tiovec){range, bytes + used, ask->length};
        used += ask->length;
    }
    /* Releases the request, which saves memory in a server that waits for a disk, for example. */
    msk_detach(fd, msk);
    int sent = msk_sendv(fd, msk, pieces, count);
    if (sent < 0)
        fprintf(stderr, "cannot send an answer: %s\n", strerror(-sent));
}

/* Answers all queued events. */
static void answer_all(int fd) {
    minisock *msk;
    while ((msk = msk_next_event(fd)))
        answer(fd, msk);
    msk_flush(fd);
}

static uint8_t collection[1 << 20];

/* Writes the queued events, preceded by their length; 0 if the output is closed. */
static int give(int fd) {
    size_t length = sizeof collection;
    if (msk_extract_events(fd, NULL, 0, collection, &length) <= 0)
        return 1;
    int told = fwrite(&length, sizeof length, 1, stdout) == 1;
    return told && fwrite(collection, 1, length, stdout) == length && fflush(stdout) == 0;
}

/* Reads `length` bytes; 0 at the end of the input. */
static int read_all(void *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t got = read(STDIN_FILENO, (uint8_t *)bytes + done, length - done);
        if (got <= 0)
            return 0;
        done += (size_t)got;
    }
    return 1;
}

/* Reads events, and answers them; 0 at the end of the input. */
static int take(int fd) {
    size_t length;
    if (!read_all(&length, sizeof length) || length > sizeof collection ||
        !read_all(collection, length))
        return 0;
    msk_install_events(fd, collection, length);
    answer_all(fd);
    return 1;
}

int main(int argc, char **argv) {
    struct msk_options options = {0};
    int gives = argc == 5 && strcmp(argv[4], "give") == 0;
    int takes = argc == 5 && strcmp(argv[4], "take") == 0;
    if (argc != 2 && argc != 4 && !gives && !takes) {
        fprintf(stderr, "usage: server ADDRESSES [RUN-DIR KEY-FILE [give|take]]\n");
        return 2;
    }
    if (argc >= 4) {
        options.run_dir = argv[2];
        options.key_file = argv[3];
    }
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    signal(SIGPIPE, SIG_IGN);
    int fd = msk_listen(argv[1], &options);
    if (fd < 0) {
        fprintf(stderr, "cannot listen at %s: %s\n", argv[1], strerror(-fd));
        return 1;
    }
    fprintf(stderr, "ready\n");
    for (unsigned turns = 0; !stopped;) {
        struct pollfd ready[2] = {{fd, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
        poll(ready, takes ? 2 : 1, msk_timeout(fd));
        if (takes && (ready[1].revents & (POLLIN | POLLHUP)))
            takes = take(fd);
        while (msk_turn(fd) > 0) {
            if (gives && ++turns % 2 == 0)
                gives = give(fd);
            answer_all(fd);
        }
    }
    return msk_close(fd) == 0 ? 0 : 1;
}
