/*
 * A stand-in for libnvidia-ml.so.1, so that the real loader and the real nvidia-ml-py meet a driver of our choice.
 *
 *   FAKE_NVML_GPUS=8        number of GPUs
 *   FAKE_NVML_MIG=2         MIG instances on each GPU; without it MIG is off
 *   FAKE_NVML_INIT_RC=9     what nvmlInitWithFlags returns (9: driver not loaded, 18: library and driver differ)
 *   FAKE_NVML_HANG=1        nvmlInitWithFlags never returns
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
enum { SLOTS = 7 }; /* as an A100 has, most of them unused */

struct device {
    unsigned gpu;
    int instance; /* -1: the GPU itself */
};

static struct device gpus[64], instances[64][SLOTS];

static unsigned number(const char *name)
{
    const char *text = getenv(name);
    return text ? (unsigned)atoi(text) : 0;
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    while (number("FAKE_NVML_HANG"))
        pause();
    return (int)number("FAKE_NVML_INIT_RC");
}

const char *nvmlErrorString(int code)
{
    (void)code;
    return "words of the stand-in";
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = number("FAKE_NVML_GPUS");
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device)
{
    if (index >= number("FAKE_NVML_GPUS"))
        return INVALID_ARGUMENT;
    gpus[index] = (struct device){index, -1};
    *device = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned length)
{
    const char *kind = device->instance < 0 ? "GPU" : "MIG";
    snprintf(uuid, length, "%s-%x%x000000-0000-0000-0000-000000000000", kind, device->gpu, device->instance + 1);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending)
{
    (void)device;
    *current = *pending = number("FAKE_NVML_MIG") > 0;
    return getenv("FAKE_NVML_MIG") ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count)
{
    (void)device;
    *count = SLOTS;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *gpu, unsigned index, struct device **device)
{
    if (index >= number("FAKE_NVML_MIG") || index >= SLOTS)
        return NOT_FOUND;
    instances[gpu->gpu][index] = (struct device){gpu->gpu, (int)index};
    *device = &instances[gpu->gpu][index];
    return SUCCESS;
}
