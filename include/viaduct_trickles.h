/*
 * Trickles for C: servers that keep nothing of their clients, and clients.
 *
 *   server   fd = msk_listen(...)                  client   fd = msk_connect(...)
 *            loop: poll fd, msk_timeout()                   loop: poll fd, msk_timeout()
 *                  msk_turn(fd)                                   msk_turn(fd)
 *                  while m = msk_next_event(fd)                   msk_request, msk_write, msk_read
 *                      msk_inputs, msk_asks                 msk_close(fd)
 *                      msk_set_output, ..., msk_send
 *                  msk_flush(fd)
 *
 * Functions return 0 or more, or -errno. An fd is one to poll for reading, and to be closed by
 * msk_close alone. docs/trickles/api.md says what continuations, streams and regions are.
 */
#ifndef VIADUCT_TRICKLES_H
#define VIADUCT_TRICKLES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* By which packets. Any: a server answers those in TCP's format, as far as privileges allow, and UDP's; a
 * client tries TCP's format, then UDP's. */
enum msk_ways { MSK_ANY = 0, MSK_TCP = 1, MSK_UDP = 2 };

/* All 0 is what is usual. */
struct msk_options {
    int ways;             /* enum msk_ways */
    uint32_t mtu;         /* of the interface, 576 to 1500; 0: 1500 */
    const char *run_dir;  /* where changed rules are noted; NULL: /run/viaduct */
    const char *key_file; /* of a server: the secrets that replicas share, as `viaduct serve --key` has
                             them; NULL: secrets that end with the process */
    size_t replay;        /* of a server: memory for what was answered, bytes; 0: 16 MiB */
    int balanced;         /* of a server: packets of one connection are dealt among replicas */
};

/* ---- both ends ---- */

/* Takes what has come, and sends what waits; never waits. A server: how many events wait; a client: how
 * many packets came, or -EPROTONOSUPPORT (a plain TCP server: connect to it by connect(2)) or
 * -ECONNREFUSED. */
int msk_turn(int fd);
/* Milliseconds after which msk_turn is to be called although nothing came; 0 while something waits to be sent;
 * -1: never. */
int msk_timeout(int fd);
/* Sends what waits at once, and not with the next msk_turn. */
int msk_flush(int fd);
/* Ends it. A client's server is told. A process that ends without that may leave a rule of nftables, which drops
 * Trickles' own packets alone and goes with the next that is opened. */
int msk_close(int fd);

/* ---- servers (Trickles, section 3) ---- */

/* Listens at addresses such as "0.0.0.0:80,[::]:80". The fd. */
int msk_listen(const char *addresses, const struct msk_options *options);

/* The right to answer one request, once: it is used up by msk_send, msk_sendv, msk_sendfilev,
 * msk_sendbulk and msk_drop. */
typedef struct minisock minisock;

enum msk_event { MSK_OPEN = 0, MSK_REQUEST = 1, MSK_CLOSE = 2 };

/* The next event that waits, or NULL. */
minisock *msk_next_event(int fd);
/* enum msk_event; nobody waits for an answer to MSK_CLOSE. */
int msk_kind(const minisock *);
/* The connection's number, which all its events bear; an MSK_OPEN that was not answered may come again with another. */
uint64_t msk_connection(const minisock *);

/* What a client sends on a stream. The bytes live as long as the minisocket, and are not detached. */
struct msk_input {
    uint32_t stream;
    int ends;             /* the stream ends with these */
    uint64_t start;       /* its output's first position ... */
    uint64_t reserve;     /* ... and how many there are for it */
    uint64_t position;    /* bytes that were consumed before these */
    const void *state;    /* what the server has given with msk_set_input; nothing at position 0 */
    size_t state_length;
    const void *data;
    size_t length;
};
/* Fills up to `most` inputs; how many there are. */
int msk_inputs(const minisock *, struct msk_input *inputs, int most);

/* A range of output that a client asks for. */
struct msk_ask {
    int ask;              /* its number, for struct msk_range */
    uint32_t stream;
    uint64_t start, end;  /* what the continuation yields */
    uint64_t position;    /* what is asked for, as far as its packet has room ... */
    uint64_t length;
    int last;             /* nothing follows `end` */
    const void *state;    /* what the server has given with msk_set_output */
    size_t state_length;
};
/* Fills up to `most` asks; how many there are. */
int msk_asks(const minisock *, struct msk_ask *asks, int most);

enum { MSK_MOST_STATE = 700 };
/* Input continuation: `consumed` bytes of input number `input` were read; what follows comes with `state`, which has
 * MSK_MOST_STATE bytes at most (-EMSGSIZE). */
int msk_set_input(minisock *, int input, uint64_t consumed, const void *state, size_t length);
/* Output continuation: `state` yields the stream's output from `start` to below `end`; nothing follows if
 * `last`. Of `state` as above. */
int msk_set_output(minisock *, uint32_t stream, uint64_t start, uint64_t end, int last,
                   const void *state, size_t length);
/* All of the input was read, and no more will be. */
int msk_closed(minisock *, int input);
enum msk_reason { MSK_REFUSED = 0, MSK_CHANGED = 1, MSK_UNKNOWN = 2, MSK_FAILED = 3 };
/* The stream does not go on. */
int msk_reset(minisock *, uint32_t stream, int reason);
/* Fills up to `most` numbers: bytes of continuations and data that each packet of the answer has room for, 0 where there
 * is none. How many packets. Those with room answer one ask each, in turn. */
int msk_rooms(const minisock *, size_t *rooms, int most);
/* The same as msk_set_output, but in packet `packet` of the answer, which counts from 0, beside its data; then none of
 * those above is sent. One for each packet. -EMSGSIZE: it has no room. */
int msk_setucont(int fd, minisock *, int packet, uint32_t stream, uint64_t start, uint64_t end, int last,
                 const void *state, size_t length);

/* Sends, and uses the minisocket up. The bytes begin with the first ask; where nothing is asked for, at
 * the `start` of the first msk_set_output, or of the first input. What does not fit is asked for. */
int msk_send(int fd, minisock *, const void *data, size_t length);

/* Where bytes belong. */
struct msk_range {
    int ask;              /* of this ask; -1: nobody has asked for them yet, which may be of one stream alone */
    uint32_t stream;
    uint64_t position;
    int ends;             /* the stream's output ends with them */
};
typedef struct tiovec {
    struct msk_range range;
    const void *base;
    size_t length;
} tiovec;
/* The same, gathered; several pieces of one ask are one behind the other. -EINVAL: a range is of no ask, or of a second
 * stream, or not behind the one before it. Nothing is sent then, which to the client is a lost packet. */
int msk_sendv(int fd, minisock *, const tiovec *, int count);
typedef struct fiovec {
    struct msk_range range;
    int file;             /* a descriptor, open until the call returns */
    uint64_t offset;
    uint64_t length;
} fiovec;
/* The same, from files. */
int msk_sendfilev(int fd, minisock *, const fiovec *, int count);
typedef struct mskdesc {
    minisock *msk;
    const void *data;
    size_t length;
} mskdesc;
/* msk_send for each. How many there are, or the first error; all are used up. */
int msk_sendbulk(int fd, const mskdesc *, int count);
/* Does not answer; to the client it is a lost packet. */
int msk_drop(int fd, minisock *);
/* Keeps the right to answer, and gives the request's bytes back. */
int msk_detach(int fd, minisock *);

typedef struct extract_mskdesc_in {
    uint64_t connection;
} extract_mskdesc_in;
/* Takes the waiting events of these connections (of all, if `count` is 0) out of the queue, as bytes for
 * msk_install_events of a server with the same secrets, on any machine. `*length`: how many bytes there
 * are, then how many were written; what does not fit stays. How many events. */
int msk_extract_events(int fd, const extract_mskdesc_in *, int count, void *collection, size_t *length);
/* Puts such into the queue. How many were taken; others were altered, are too old, or were there before. */
int msk_install_events(int fd, const void *collection, size_t length);

/* ---- clients (sections 4, 5.2 and 6.1) ---- */

/* A connection to "host:port"; nothing is sent before msk_turn. The fd. Stream 0 is a socket. */
int msk_connect(const char *to, const struct msk_options *options);
/* Sends `data` to be turned into an output of at most `reserve` bytes; never blocks, any number pending. The
 * stream to read it from. */
int msk_request(int fd, const void *data, size_t length, uint64_t reserve);
/* One more stream, to be written and read. */
int msk_begin(int fd, uint64_t reserve);
/* How many bytes were taken; -EAGAIN: none now; -EPIPE: none any more, for the server reads no more, or msk_shutdown was
 * called; -EINVAL, here and below: there is no such stream. */
int msk_write(int fd, int stream, const void *data, size_t length);
/* Nothing more will be written. */
int msk_shutdown(int fd, int stream);
/* How many bytes came; 0: the output has ended; -EAGAIN: none are there; -ECONNRESET, -EPIPE, -EMSGSIZE (longer
 * than was reserved), -EPROTO (the server has given nothing to ask for the rest with), -ETIMEDOUT. */
int msk_read(int fd, int stream, void *data, size_t length);
/* Needs a stream no more. */
int msk_forget(int fd, int stream);

#ifdef __cplusplus
}
#endif

#endif
