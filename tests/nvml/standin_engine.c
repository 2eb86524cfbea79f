/*
 * The scenario: a file named in FAKE_NVML_SCENARIO with one line for each answer, its columns divided by tabs:
 *
 *   question  from_call  after_s  kind  text
 *
 *   *.nvmlDeviceGetTemperature(0)   0  0    =  34          every GPU's sensor 0 shows 34 degrees
 *   3.nvmlDeviceGetTemperature(0)   5  0    =  91          GPU 3's shows 91 from the fifth time that it is asked
 *   3.nvmlDeviceGetName(*)          0  2.5  !  15          GPU 3 is lost after two and a half seconds
 *   .nvmlInitWithFlags()            0  0    ~              the driver hangs
 *
 * The last line that fits and is due is the answer; without any it is "not supported". How often a line fitted and when
 * the first question came is kept in a file beside it, shared by every process that loads the scenario.
 */
#include "standin_engine.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct line lines[LINES];
int line_count, references;
static u64 *shared; /* [0]: when it began in milliseconds; [1 + i]: how often line i fitted */

void die(const char *what, const char *which)
{
    fprintf(stderr, "stand-in for NVML: %s: %s\n", what, which ? which : "not set");
    _exit(99); /* abort() would make Python print where it was */
}

static char *read_file(const char *path)
{
    struct stat info;
    int fd = path ? open(path, O_RDONLY) : -1;
    if (fd < 0 || fstat(fd, &info))
        die("cannot read FAKE_NVML_SCENARIO", path);
    char *text = calloc(1, (size_t)info.st_size + 1);
    if (!text || read(fd, text, (size_t)info.st_size) != info.st_size)
        die("cannot read", path);
    close(fd);
    return text;
}

static void share(const char *scenario)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.calls", scenario);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    size_t size = (1 + LINES) * sizeof *shared;
    if (fd < 0 || ftruncate(fd, (off_t)size))
        die("cannot write", path);
    shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        die("cannot map", path);
    close(fd);
}

void load(void)
{
    const char *path = getenv("FAKE_NVML_SCENARIO");
    char *text = read_file(path), *row;
    if (shared)
        munmap(shared, (1 + LINES) * sizeof *shared);
    share(path);
    for (line_count = 0; (row = strsep(&text, "\n")) && *row; line_count++) {
        if (line_count == LINES)
            die("too many lines", path);
        struct line *line = &lines[line_count];
        line->question = strsep(&row, "\t");
        line->function = strchr(line->question, '.');
        line->length = line->function ? strcspn(line->function, "(*?[") : 0;
        if (line->function && line->function[line->length] != '(')
            line->function = NULL;
        const char *from_call = strsep(&row, "\t"), *after_s = strsep(&row, "\t"), *kind = strsep(&row, "\t");
        if (!row)
            die("a line with less than five columns", line->question);
        line->from_call = atol(from_call);
        line->after_s = atof(after_s);
        line->kind = *kind;
        line->text = row;
    }
}

double elapsed(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    u64 began = 0, ms = (u64)now.tv_sec * 1000 + (u64)now.tv_nsec / 1000000;
    if (__atomic_compare_exchange_n(&shared[0], &began, ms, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return 0;
    return (double)(ms - began) / 1000;
}

static int answer(const char *question, const char **text)
{
    struct line *found = NULL;
    double now = elapsed();
    const char *function = strchr(question, '.');
    for (int i = 0; i < line_count; i++) {
        /* Nearly all lines are about another function, and fnmatch is slow. */
        if (lines[i].function && strncmp(lines[i].function, function, lines[i].length + 1))
            continue;
        if (fnmatch(lines[i].question, question, FNM_PATHNAME))
            continue;
        u64 calls = __atomic_add_fetch(&shared[1 + i], 1, __ATOMIC_SEQ_CST);
        if (calls >= (u64)lines[i].from_call && now >= lines[i].after_s)
            found = &lines[i];
    }
    if (!found)
        return UNSAID;
    while (found->kind == '~')
        pause();
    if (found->kind == '!')
        return atoi(found->text);
    *text = found->text;
    return SUCCESS;
}

int ask(const char *device, const char *function, const char **text, const char *arguments, ...)
{
    char written[128], question[256];
    va_list list;
    va_start(list, arguments);
    vsnprintf(written, sizeof written, arguments, list);
    va_end(list);
    snprintf(question, sizeof question, "%s.%s(%s)", device, function, written);
    return references ? answer(question, text) : UNINITIALIZED;
}

int permitted(const char *device, const char *function)
{
    const char *text;
    int code = ask(device, function, &text, "%s", "");
    return code == UNSAID ? SUCCESS : code;
}

const char *peek(const char *device, const char *function)
{
    char question[256];
    snprintf(question, sizeof question, "%s.%s()", device, function);
    for (int i = line_count - 1; i >= 0; i--)
        if (lines[i].kind == '=' && !fnmatch(lines[i].question, question, FNM_PATHNAME))
            return lines[i].text;
    return NULL;
}

/* What every structure consists of, for `fill` and for the test that compares it with nvidia-ml-py. */
struct member {
    const char *layout;
    char kind; /* N a number, S text, B bytes in hexadecimal, and # the structure as a whole */
    const char *name;
    size_t offset, size;
    const char *function;
    u32 version;
};
#define ROW(T, letter, name) {#T, letter, #name, offsetof(T, name), sizeof(((T *)0)->name), NULL, 0},
#define ROW_NUMBER(T, type, name) ROW(T, 'N', name)
#define ROW_TEXT(T, size, name) ROW(T, 'S', name)
#define ROW_BYTES(T, size, name) ROW(T, 'B', name)
#define DESCRIBE(T, MEMBERS, function, number)                                                                        \
    {#T, '#', "", 0, sizeof(T), function, (u32)(number) << 24 | (u32)sizeof(T)},                                      \
        MEMBERS(T, ROW_NUMBER, ROW_TEXT, ROW_BYTES)
static const struct member members[] = {STRUCTS(DESCRIBE)};
enum { MEMBERS = sizeof members / sizeof *members };

const char *layout_of(const char *function, u32 version)
{
    for (int i = 0; i < MEMBERS; i++)
        if (members[i].kind == '#' && members[i].version == version && !strcmp(members[i].function, function))
            return members[i].layout;
    return NULL;
}

static void set(u8 *out, const struct member *member, const char *value)
{
    u64 number = strtoull(value, NULL, 0);
    unsigned byte;
    if (member->kind == 'N')
        memcpy(out, &number, member->size);
    else if (member->kind == 'S')
        strncpy((char *)out, value, member->size - 1);
    else
        for (size_t i = 0; i < member->size && sscanf(value + 2 * i, "%2x", &byte) == 1; i++)
            out[i] = (u8)byte;
}

void fill(void *out, const char *layout, const char *text)
{
    char copy[1024], *rest = copy, *name;
    snprintf(copy, sizeof copy, "%s", text);
    while ((name = strsep(&rest, " ")) && *name) {
        char *value = name;
        strsep(&value, "=");
        int i = 0;
        while (i < MEMBERS && (strcmp(members[i].layout, layout) || strcmp(members[i].name, name)))
            i++;
        if (i == MEMBERS || !value)
            die(layout, name);
        set((u8 *)out + members[i].offset, &members[i], value);
    }
}

/* For the tests only: one line for each structure and member: name, member, offset, size. */
const char *standin_layouts(void)
{
    static char text[MEMBERS * 80];
    char *end = text;
    for (int i = 0; i < MEMBERS; i++)
        end += sprintf(end, "%s %s %zu %zu\n", members[i].layout, members[i].kind == '#' ? "-" : members[i].name,
                       members[i].offset, members[i].size);
    return text;
}
