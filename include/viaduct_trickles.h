/*
 * Trickles for C: servers that keep no state of their clients, and clients.
 *
 *   server   fd = msk_listen(...)                  client   fd = msk_connect(...)
 *            loop: poll fd, msk_timeout()                   loop: poll fd, msk_timeout()
 *                  msk_turn(fd)                                   msk_turn(fd)
 *                  while m = msk_next_event(fd)                   msk_request, msk_write, msk_read
 *                      msk_inputs, msk_asks                 msk_close(fd)
 *                      msk_set_output, ..., msk_send
 *                  msk_flush(fd)
 *
 * Functions return 0 or more, or -errno. An fd may be polled for reading, and must be closed only
 * with msk_close. docs/trickles/api.md describes continuations, streams and regions.
 */
#ifndef VIADUCT_TRICKLES_H
#define VIADUCT_TRICKLES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Packet formats. MSK_ANY: a server accepts UDP, and packets in TCP's format if privileges allow
 * them; a client tries TCP's format, then UDP. */
enum msk_ways { MSK_ANY = 0, MSK_TCP = 1, MSK_UDP = 2 };

/* Options; 0 or NULL selects a default. */
struct msk_options {
    int ways;             /* enum msk_ways */
    uint32_t mtu;         /* maximum length of packets, 576 to 1500; default 1500 */
    const char *run_dir;  /* directory of the journal of changed rules; default /run/viaduct */
    const char *key_file; /* server: file of the secrets that replicas share, as for
                             `viaduct serve --key`; default: a secret of this process only */
    size_t replay;        /* server: memory for answered requests in bytes; default 16 MiB */
    int balanced;         /* server: several replicas get packets of one connection */
};

/* ---- both ends ---- */

/* Receives packets, and sends queued ones. Does not block. Returns, for a server, the number of
 * queued events; for a client, the number of received packets, -EPROTONOSUPPORT (the server is a
 * plain TCP server: use connect(2)) or -ECONNREFUSED. */
int msk_turn(int fd);
/* Returns the milliseconds after which msk_turn must be called even if the fd is not readable; 0
 * while packets are queued for sending; -1 for no limit. */
int msk_timeout(int fd);
/* Sends queued packets now, not with the next msk_turn. */
int msk_flush(int fd);
/* Closes a server; or closes a client's connection and notifies the server. A process that exits
 * without this call may leave an nftables table behind, which drops only Trickles' packets. The
 * next msk_connect, or the next msk_listen at the same port, removes it. */
int msk_close(int fd);

/* ---- servers (Trickles, section 3) ---- */

/* Listens at addresses such as "0.0.0.0:80,[::]:80". Returns the fd. */
int msk_listen(const char *addresses, const struct msk_options *options);

/* The right to answer one request, once. msk_send, msk_sendv, msk_sendfilev, msk_sendbulk and
 * msk_drop use it up. */
typedef struct minisock minisock;

enum msk_event { MSK_OPEN = 0, MSK_REQUEST = 1, MSK_CLOSE = 2 };

/* Returns the next queued event; NULL if there is none. */
minisock *msk_next_event(int fd);
/* Returns an enum msk_event. The client expects no answer to MSK_CLOSE. */
int msk_kind(const minisock *);
/* Returns the connection's number, the same for all its events. A client that gets no answer to
 * MSK_OPEN may repeat the request, which then has another number. */
uint64_t msk_connection(const minisock *);

/* Input from the client on a stream. The bytes are valid until the minisocket is used up or
 * detached. */
struct msk_input {
    uint32_t stream;
    int ends;             /* true if the stream ends with these bytes */
    uint64_t start;       /* first position of the stream's output ... */
    uint64_t reserve;     /* ... and number of positions reserved for it */
    uint64_t position;    /* number of bytes consumed before these */
    const void *state;    /* state set with msk_set_input; empty at position 0 */
    size_t state_length;
    const void *data;
    size_t length;
};
/* Stores up to `most` inputs. Returns the number of inputs in the request. */
int msk_inputs(const minisock *, struct msk_input *inputs, int most);

/* A range of output that a client asks for. */
struct msk_ask {
    int ask;              /* number of the ask, for struct msk_range */
    uint32_t stream;
    uint64_t start, end;  /* range that the continuation yields */
    uint64_t position;    /* requested range, as far as its packet has room */
    uint64_t length;
    int last;             /* true if no output follows `end` */
    const void *state;    /* state set with msk_set_output or msk_setucont */
    size_t state_length;
};
/* Stores up to `most` asks. Returns the number of asks in the request. */
int msk_asks(const minisock *, struct msk_ask *asks, int most);

enum { MSK_MOST_STATE = 700 };
/* Adds an input continuation: the server has read `consumed` bytes of input number `input`, and the
 * client sends the following bytes with `state`. `state` has at most MSK_MOST_STATE bytes;
 * otherwise -EMSGSIZE. */
int msk_set_input(minisock *, int input, uint64_t consumed, const void *state, size_t length);
/* Adds an output continuation: with `state` the server can produce the stream's output from `start`
 * to below `end`. If `last`, the stream's output stops there. `state` is limited as for
 * msk_set_input. */
int msk_set_output(minisock *, uint32_t stream, uint64_t start, uint64_t end, int last,
                   const void *state, size_t length);
/* Tells the client that all of the input was read, and that no more will be read. */
int msk_closed(minisock *, int input);
enum msk_reason { MSK_REFUSED = 0, MSK_CHANGED = 1, MSK_UNKNOWN = 2, MSK_FAILED = 3 };
/* Resets a stream. */
int msk_reset(minisock *, uint32_t stream, int reason);
/* Stores, for up to `most` packets of the answer, the bytes of continuations and data for which
 * each has room. Returns the number of packets. The packets that have room answer the asks in
 * order, one ask each. */
int msk_rooms(const minisock *, size_t *rooms, int most);
/* Puts an output continuation, like that of msk_set_output, into packet number `packet` (from 0) of
 * the answer, beside its data. One continuation for each packet; -EMSGSIZE if the packet has no
 * room for it. The answer then omits what msk_set_input, msk_set_output, msk_closed and msk_reset
 * have added. */
int msk_setucont(int fd, minisock *, int packet, uint32_t stream, uint64_t start, uint64_t end, int last,
                 const void *state, size_t length);

/* Sends `data`, and uses the minisocket up. The bytes begin at the position of the first ask;
 * without asks at the `start` of the first msk_set_output; otherwise at the `start` of the first
 * input. The client asks again for bytes that do not fit. */
int msk_send(int fd, minisock *, const void *data, size_t length);

/* Position of bytes in a stream's output. */
struct msk_range {
    int ask;              /* ask that the bytes answer; -1 for bytes of one stream without an ask */
    uint32_t stream;
    uint64_t position;
    int ends;             /* true if the stream's output ends with the bytes */
};
typedef struct tiovec {
    struct msk_range range;
    const void *base;
    size_t length;
} tiovec;
/* Sends several pieces, and uses the minisocket up. Pieces for one ask must be contiguous. -EINVAL
 * if the ask of a range does not exist or belongs to another stream, if the range does not follow
 * the one before it for the same ask, or if ranges without an ask belong to several streams. Then
 * nothing is sent, and the client sees a lost packet. */
int msk_sendv(int fd, minisock *, const tiovec *, int count);
typedef struct fiovec {
    struct msk_range range;
    int file;             /* descriptor, which must be open until the call returns */
    uint64_t offset;
    uint64_t length;
} fiovec;
/* Like msk_sendv, from files. */
int msk_sendfilev(int fd, minisock *, const fiovec *, int count);
typedef struct mskdesc {
    minisock *msk;
    const void *data;
    size_t length;
} mskdesc;
/* Calls msk_send for each description. Returns their number, or the first error; all minisockets
 * are used up. */
int msk_sendbulk(int fd, const mskdesc *, int count);
/* Drops an event without an answer, and uses the minisocket up. The client sees a lost packet. */
int msk_drop(int fd, minisock *);
/* Keeps the right to answer, and releases the request's bytes. */
int msk_detach(int fd, minisock *);

typedef struct extract_mskdesc_in {
    uint64_t connection;
} extract_mskdesc_in;
/* Moves the queued events of these connections (of all connections if `count` is 0) to
 * `collection`, as bytes for msk_install_events of a server with the same secrets, on any machine.
 * `*length` is the size of `collection`, and is set to the number of bytes written. Events that do
 * not fit stay in the queue. Returns the number of events moved. */
int msk_extract_events(int fd, const extract_mskdesc_in *, int count, void *collection, size_t *length);
/* Queues extracted events. Returns the number of events queued. Events are refused if they were
 * altered, are too old or were installed before, or if the queue is full. */
int msk_install_events(int fd, const void *collection, size_t length);

/* ---- clients (sections 4, 5.2 and 6.1) ---- */

/* Opens a connection to "host:port". Nothing is sent before msk_turn. Returns the fd. Stream 0
 * exists from the start, and is used like a socket. */
int msk_connect(const char *to, const struct msk_options *options);
/* Sends `data` as a request, whose output has at most `reserve` bytes. Never blocks; any number of
 * requests may be pending. Returns the stream from which the output is read. */
int msk_request(int fd, const void *data, size_t length, uint64_t reserve);
/* Opens a further stream, whose output has at most `reserve` bytes. Returns its number. */
int msk_begin(int fd, uint64_t reserve);
/* Returns the number of bytes accepted; -EAGAIN if none can be accepted now; -EPIPE if the server
 * has stopped reading, or msk_shutdown was called; -EINVAL, here and below, if there is no such
 * stream. If the stream has failed, returns the error that msk_read returns. */
int msk_write(int fd, int stream, const void *data, size_t length);
/* Ends the stream's input. */
int msk_shutdown(int fd, int stream);
/* Returns the number of bytes read; 0 if the output has ended; -EAGAIN if no bytes have arrived;
 * -ECONNRESET if the server has reset the stream, -EPIPE if it does not consume the input,
 * -EMSGSIZE if the output is longer than the reserve, -EPROTO if the server has sent no
 * continuation for the next bytes, -ETIMEDOUT. */
int msk_read(int fd, int stream, void *data, size_t length);
/* Drops a stream and cancels its requests. */
int msk_forget(int fd, int stream);

#ifdef __cplusplus
}
#endif

#endif
