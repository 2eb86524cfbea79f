/*
 * Events. A line of the scenario such as "3.event" with a type and its data (8 79: XID 79) happens once. "From the n-th
 * call" counts the waits of a set; what happened before a set watched the GPU is never heard by it.
 */
#include "standin_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct set {
    struct watch {
        Device device;
        u64 types;
        double since;
    } watches[GPUS];
    int count, waits;
    bool heard[LINES];
};

int nvmlEventSetCreate(struct set **out)
{
    int code = permitted("", "nvmlEventSetCreate");
    *out = code == SUCCESS ? calloc(1, sizeof **out) : NULL;
    return code;
}

int nvmlEventSetFree(struct set *set)
{
    free(set);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Device device, u64 types, struct set *set)
{
    int code = permitted(device->name, "nvmlDeviceRegisterEvents");
    if (code == SUCCESS && set->count < GPUS)
        set->watches[set->count++] = (struct watch){device, types, elapsed()};
    return code;
}

static bool hear(struct set *set, const struct watch *watch, nvmlEventData_t *out)
{
    char question[32];
    snprintf(question, sizeof question, "%s.event", watch->device->name);
    for (int i = 0; i < line_count; i++) {
        const struct line *line = &lines[i];
        if (set->heard[i] || strcmp(line->question, question) || set->waits < line->from_call)
            continue;
        if (line->after_s > elapsed() || (line->after_s > 0 && line->after_s < watch->since))
            continue;
        char *data;
        u64 type = strtoull(line->text, &data, 0);
        set->heard[i] = true;
        *out = (nvmlEventData_t){watch->device, type, strtoull(data, NULL, 0), ~0u, ~0u};
        if (type & watch->types)
            return true;
    }
    return false;
}

/* Whether anything can still happen: where it cannot, nobody needs to wait for the timeout. */
static bool expects(const struct set *set)
{
    for (int i = 0; i < line_count; i++)
        if (!set->heard[i] && strstr(lines[i].question, ".event"))
            return true;
    return false;
}

int nvmlEventSetWait_v2(struct set *set, nvmlEventData_t *out, u32 timeout_ms)
{
    int code = permitted("", "nvmlEventSetWait_v2");
    double deadline = elapsed() + timeout_ms / 1000.0;
    for (set->waits++; code == SUCCESS; nanosleep(&(struct timespec){0, 2000000}, NULL)) {
        for (int i = 0; i < set->count; i++)
            if (hear(set, &set->watches[i], out))
                return SUCCESS;
        if (!expects(set) || elapsed() >= deadline)
            code = TIMEOUT;
    }
    return code;
}
