/*
 * A client of server.c: COUNT concurrent requests and an upload.
 *
 *   client HOST:PORT RUN-DIR LENGTH COUNT UPLOAD-LENGTH
 *
 * Prints one line, and exits with 0 if all bytes are correct.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "viaduct_trickles.h"

enum { MOST = 1024, CHUNK = 65536 };

static uint64_t fnv(uint64_t hash, const uint8_t *bytes, size_t length) {
    for (size_t n = 0; n < length; n++)
        hash = (hash ^ bytes[n]) * 0x100000001b3u;
    return hash;
}

struct fetch {
    int stream, done;
    uint64_t at;
};

static uint8_t chunk[CHUNK];

/* Reads the bytes that have arrived for `fetch`; -1 if they differ from the object of `seed`. */
static int take(int fd, struct fetch *fetch, uint64_t seed) {
    int got;
    while ((got = msk_read(fd, fetch->stream, chunk, sizeof chunk)) > 0)
        for (int n = 0; n < got; n++, fetch->at++)
            if (chunk[n] != (uint8_t)((fetch->at * 31 + seed) % 251))
                return -1;
    fetch->done = got == 0;
    return got == 0 || got == -11 /* EAGAIN */ ? 0 : -1;
}

/* Closes the connection. Otherwise its nftables rules would remain until the next msk_connect. */
static int failed(int fd) {
    msk_close(fd);
    return 1;
}

int main(int argc, char **argv) {
    static struct fetch fetches[MOST];
    struct msk_options options = {0};
    if (argc != 6) {
        fprintf(stderr, "usage: client HOST:PORT RUN-DIR LENGTH COUNT UPLOAD-LENGTH\n");
        return 2;
    }
    options.run_dir = argv[2];
    uint64_t length = strtoull(argv[3], NULL, 10), upload = strtoull(argv[5], NULL, 10);
    int count = atoi(argv[4]), fd = msk_connect(argv[1], &options);
    if (fd < 0) {
        fprintf(stderr, "cannot connect to %s: %s\n", argv[1], strerror(-fd));
        return 1;
    }
    if (count < 0 || count > MOST) {
        fprintf(stderr, "at most %d objects are allowed\n", MOST);
        return failed(fd);
    }
    for (int n = 0; n < count; n++) {
        char line[80];
        int written = snprintf(line, sizeof line, "get %lu %d\n", length, n);
        fetches[n].stream = msk_request(fd, line, (size_t)written, length);
    }
    uint8_t *bytes = malloc(upload + 4), said[16];
    memcpy(bytes, "put ", 4);
    for (uint64_t n = 0; n < upload; n++)
        bytes[n + 4] = (uint8_t)(n * 7);
    size_t told = 0;
    int put = msk_request(fd, bytes, upload + 4, sizeof said), left = count + 1;
    uint64_t expected[2] = {fnv(0xcbf29ce484222325u, bytes + 4, upload), upload};
    while (left > 0) {
        struct pollfd ready = {fd, POLLIN, 0};
        int came = msk_turn(fd);
        if (came < 0) {
            fprintf(stderr, "%s\n", strerror(-came));
            return failed(fd);
        }
        left = 0;
        for (int n = 0; n < count; n++) {
            if (!fetches[n].done && take(fd, &fetches[n], (uint64_t)n) < 0) {
                fprintf(stderr, "request %d: wrong byte at %lu\n", n, fetches[n].at);
                return failed(fd);
            }
            left += !fetches[n].done;
        }
        int got = msk_read(fd, put, said + told, sizeof said - told);
        told += got > 0 ? (size_t)got : 0;
        if (got < 0 && got != -11 /* EAGAIN */) {
            fprintf(stderr, "the upload failed: %s\n", strerror(-got));
            return failed(fd);
        }
        left += told < sizeof said;
        if (came == 0 && left > 0)
            poll(&ready, 1, msk_timeout(fd));
    }
    if (memcmp(said, expected, sizeof said) != 0) {
        fprintf(stderr, "the upload has a wrong digest\n");
        return failed(fd);
    }
    printf("%d of %lu bytes each, %lu uploaded\n", count, length, upload);
    free(bytes);
    return msk_close(fd) == 0 ? 0 : 1;
}
