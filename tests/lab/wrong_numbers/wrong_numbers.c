/*
 * Preloaded into one rank: what gloo sends arrives whole and in order, with one bit of one number changed.
 *
 * gloo writes a message with writev: a header of 48 bytes, then the numbers. The first writev of a message that has
 * numbers enough gets three parts for the numbers: those before the changed byte, the byte, those after it. What is
 * left of a message that did not fit into the socket comes without its header, and passes as it is. Messages without
 * numbers pass as they are, and so does all that is sent otherwise, such as TCPStore's requests (send).
 *
 * WRONG_NUMBERS_MIN_BYTES: spare messages with fewer bytes of numbers than this (1024 when unset).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum {
    MOST_PARTS = 8,
    /* In the 101st float32, the highest bit of its fraction: 1 becomes 1.5, 3 becomes 2, and none becomes infinite. */
    BYTE = 402,
    BIT = 0x40,
    MIN_BYTES = 1024,
};

static size_t min_bytes(void)
{
    const char *text = getenv("WRONG_NUMBERS_MIN_BYTES");
    size_t size = text ? strtoul(text, NULL, 10) : MIN_BYTES;
    return size > BYTE ? size : BYTE + 1;
}

static int is_tcp(int fd)
{
    int protocol = 0;
    socklen_t size = sizeof protocol;
    return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 && protocol == IPPROTO_TCP;
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    static ssize_t (*real)(int, const struct iovec *, int);
    if (!real)
        real = (ssize_t(*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev");
    if (count < 2 || count > MOST_PARTS || parts[count - 1].iov_len < min_bytes() || !is_tcp(fd))
        return real(fd, parts, count);

    struct iovec sent[MOST_PARTS + 2], numbers = parts[count - 1];
    char *bytes = numbers.iov_base, wrong = bytes[BYTE] ^ BIT;
    memcpy(sent, parts, (size_t)(count - 1) * sizeof *parts);
    sent[count - 1] = (struct iovec){bytes, BYTE};
    sent[count] = (struct iovec){&wrong, 1};
    sent[count + 1] = (struct iovec){bytes + BYTE + 1, numbers.iov_len - BYTE - 1};
    return real(fd, sent, count + 2);
}
