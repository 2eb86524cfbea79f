/* How the stand-in finds its answers: see standin_engine.c. */
#include <stdbool.h>
#include <stddef.h>

#include "standin_structs.h"

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNSAID = -1, /* the scenario says nothing about this question */
};
enum { GPUS = 64, SLOTS = 8, LINES = 4096 };

struct device {
    char name[16]; /* "3" for a GPU, "3/1" for a MIG instance of it, "" for the whole machine */
    Device parent;
};

struct line {
    const char *question; /* a shell pattern for "3.nvmlDeviceGetTemperature(0)" */
    const char *function; /* in it, from the point on; NULL where that is a pattern, too */
    size_t length;        /* of the function's name */
    long from_call;
    double after_s;
    char kind; /* = an answer, ! an error code, ~ a hang */
    const char *text;
};

extern struct line lines[LINES];
extern int line_count, references;

void load(void);
double elapsed(void);
_Noreturn void die(const char *what, const char *which);
/* Ask with a name of the device, and arguments as printf would write them; a code, SUCCESS with *text, or UNSAID. */
int ask(const char *device, const char *function, const char **text, const char *arguments, ...)
    __attribute__((format(printf, 4, 5)));
/* Ask whether something works that has no answer of its own: silence means that it does. */
int permitted(const char *device, const char *function);
/* The answer as it is now, without counting and without a hang: its text, or NULL. */
const char *peek(const char *device, const char *function);
void fill(void *out, const char *layout, const char *text);
const char *layout_of(const char *function, u32 version);
