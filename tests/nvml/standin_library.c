/*
 * A stand-in for libnvidia-ml.so.1 that answers from a scenario (see standin_engine.c), so that the real loader and the
 * real nvidia-ml-py meet a machine of our choice. Most functions differ only in what they take and give, so each is one
 * row of its shape. The functions that an old driver lacks are hidden when the library is linked (nvml_standin.py).
 */
#include "standin_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static struct device gpus[GPUS], instances[GPUS][SLOTS];
static const char *text; /* of the latest answer; nobody asks from two threads */

static int numbers(int code, size_t size, int count, void **out)
{
    const char *rest = text;
    for (int i = 0; code == SUCCESS && i < count; i++) {
        char *end;
        u64 number = strtoull(rest, &end, 0);
        if (end == rest)
            die("an answer lacks a number", text);
        memcpy(out[i], &number, size);
        rest = end;
    }
    return code == UNSAID ? NOT_SUPPORTED : code;
}

static int words(int code, char *out, u32 length)
{
    if (code == SUCCESS)
        return snprintf(out, length, "%s", text) < (int)length ? SUCCESS : INSUFFICIENT_SIZE;
    return code == UNSAID ? NOT_SUPPORTED : code;
}

static int structure(int code, void *out, size_t size, const char *layout)
{
    if (code == SUCCESS) {
        memset(out, 0, size);
        fill(out, layout, text);
    }
    return code == UNSAID ? NOT_SUPPORTED : code;
}

/* A structure that begins with its version: the version's number in the top byte, the structure's size below. */
static int versioned(Device device, const char *function, u32 *out)
{
    u32 version = *out;
    const char *layout = layout_of(function, version);
    if (!layout)
        return ARGUMENT_VERSION_MISMATCH;
    int code = structure(ask(device->name, function, &text, "%u", version >> 24), out, version & 0xffffff, layout);
    *out = version;
    return code;
}

#define SHAPE(function, parameters, given, ...)                                                                       \
    int function parameters                                                                                           \
    {                                                                                                                 \
        if (!device)                                                                                                  \
            return INVALID_ARGUMENT;                                                                                  \
        int code = ask(device->name, #function, &text, __VA_ARGS__);                                                  \
        return given;                                                                                                 \
    }
#define TO(size, ...) numbers(code, size, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *), (void *[]){__VA_ARGS__})

#define TEXT(f) SHAPE(f, (Device device, char *a, u32 length), words(code, a, length), "%s", "")
#define U32(f) SHAPE(f, (Device device, u32 *a), TO(4, a), "%s", "")
#define U32_U32(f) SHAPE(f, (Device device, u32 *a, u32 *b), TO(4, a, b), "%s", "")
#define U64(f) SHAPE(f, (Device device, u64 *a), TO(8, a), "%s", "")
#define U32_OF(f) SHAPE(f, (Device device, u32 x, u32 *a), TO(4, a), "%u", x)
#define U32_OF_TWO(f) SHAPE(f, (Device device, u32 x, u32 y, u32 *a), TO(4, a), "%u,%u", x, y)
#define U64_OF_TWO(f) SHAPE(f, (Device device, u32 x, u32 y, u64 *a), TO(8, a), "%u,%u", x, y)
#define U64_OF_THREE(f) SHAPE(f, (Device device, u32 x, u32 y, u32 z, u64 *a), TO(8, a), "%u,%u,%u", x, y, z)
#define STRUCT(f, T) SHAPE(f, (Device device, T *a), structure(code, a, sizeof *a, #T), "%s", "")
#define STRUCT_OF(f, T) SHAPE(f, (Device device, u32 x, T *a), structure(code, a, sizeof *a, #T), "%u", x)
#define VERSIONED(f) int f(Device device, u32 *a) { return device ? versioned(device, #f, a) : INVALID_ARGUMENT; }

TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetSerial)
TEXT(nvmlDeviceGetVbiosVersion)
TEXT(nvmlDeviceGetInforomImageVersion)
U32(nvmlDeviceGetIndex)
U32(nvmlDeviceGetMinorNumber)
U32(nvmlDeviceGetModuleId)
U32(nvmlDeviceGetBoardId)
U32(nvmlDeviceGetArchitecture)
U32(nvmlDeviceGetNumaNodeId)
U32(nvmlDeviceGetVirtualizationMode)
U32(nvmlDeviceGetPersistenceMode)
U32(nvmlDeviceGetComputeMode)
U32(nvmlDeviceGetPerformanceState)
U32(nvmlDeviceGetMaxMigDeviceCount)
U32(nvmlDeviceGetGpuInstanceId)
U32(nvmlDeviceGetComputeInstanceId)
U32(nvmlDeviceGetRetiredPagesPendingStatus)
U32(nvmlDeviceGetMemoryBusWidth)
U32(nvmlDeviceGetMaxPcieLinkGeneration)
U32(nvmlDeviceGetGpuMaxPcieLinkGeneration)
U32(nvmlDeviceGetCurrPcieLinkGeneration)
U32(nvmlDeviceGetMaxPcieLinkWidth)
U32(nvmlDeviceGetCurrPcieLinkWidth)
U32(nvmlDeviceGetPcieSpeed)
U32(nvmlDeviceGetPcieReplayCounter)
U32(nvmlDeviceGetPowerUsage)
U32(nvmlDeviceGetPowerManagementLimit)
U32(nvmlDeviceGetPowerManagementDefaultLimit)
U32(nvmlDeviceGetEnforcedPowerLimit)
U32_U32(nvmlDeviceGetPowerManagementLimitConstraints)
U32_U32(nvmlDeviceGetEccMode)
U32_U32(nvmlDeviceGetMigMode)
U32_U32(nvmlDeviceGetCudaComputeCapability)
U64(nvmlDeviceGetCurrentClocksThrottleReasons)
U64(nvmlDeviceGetCurrentClocksEventReasons)
U64(nvmlDeviceGetSupportedClocksThrottleReasons)
U64(nvmlDeviceGetSupportedClocksEventReasons)
U64(nvmlDeviceGetSupportedEventTypes)
U64(nvmlDeviceGetTotalEnergyConsumption)
U32_OF(nvmlDeviceGetTemperature)
U32_OF(nvmlDeviceGetTemperatureThreshold)
U32_OF(nvmlDeviceGetClockInfo)
U32_OF(nvmlDeviceGetMaxClockInfo)
U32_OF(nvmlDeviceGetMaxCustomerBoostClock)
U32_OF(nvmlDeviceGetApplicationsClock)
U32_OF(nvmlDeviceGetDefaultApplicationsClock)
U32_OF(nvmlDeviceGetNvLinkState)
U32_OF(nvmlDeviceGetNvLinkVersion)
U32_OF(nvmlDeviceGetNvLinkRemoteDeviceType)
U32_OF_TWO(nvmlDeviceGetNvLinkCapability)
U32_OF_TWO(nvmlDeviceGetClock)
U64_OF_TWO(nvmlDeviceGetTotalEccErrors)
U64_OF_TWO(nvmlDeviceGetNvLinkErrorCounter)
U64_OF_THREE(nvmlDeviceGetMemoryErrorCounter)
STRUCT(nvmlDeviceGetPciInfo_v2, nvmlPciInfo_t)
STRUCT(nvmlDeviceGetPciInfo_v3, nvmlPciInfo_t)
STRUCT(nvmlDeviceGetMemoryInfo, nvmlMemory_t)
STRUCT(nvmlDeviceGetBAR1MemoryInfo, nvmlBAR1Memory_t)
STRUCT(nvmlDeviceGetUtilizationRates, nvmlUtilization_t)
STRUCT(nvmlDeviceGetRowRemapperHistogram, nvmlRowRemapperHistogramValues)
STRUCT(nvmlDeviceGetGpuFabricInfo, nvmlGpuFabricInfo_t)
STRUCT(nvmlDeviceGetAttributes_v2, nvmlDeviceAttributes)
STRUCT_OF(nvmlDeviceGetNvLinkRemotePciInfo_v2, nvmlPciInfo_t)
STRUCT_OF(nvmlDeviceGetViolationStatus, nvmlViolationTime_t)
VERSIONED(nvmlDeviceGetMemoryInfo_v2)
VERSIONED(nvmlDeviceGetRepairStatus)
VERSIONED(nvmlDeviceGetSramEccErrorStatus)
VERSIONED(nvmlDeviceGetMarginTemperature)
VERSIONED(nvmlDeviceGetTemperatureV)
VERSIONED(nvmlDeviceGetGpuFabricInfoV)
VERSIONED(nvmlDeviceGetPlatformInfo)
SHAPE(nvmlDeviceGetRemappedRows, (Device device, u32 *a, u32 *b, u32 *c, u32 *d), TO(4, a, b, c, d), "%s", "")
SHAPE(nvmlDeviceGetP2PStatus, (Device device, Device to, u32 x, u32 *a), TO(4, a), "%s,%u", to->name, x)
SHAPE(nvmlDeviceGetTopologyCommonAncestor, (Device device, Device to, u32 *a), TO(4, a), "%s", to->name)

/* The library and the machine. */
#define MACHINE_TEXT(f) int f(char *a, u32 length) { return words(ask("", #f, &text, "%s", ""), a, length); }
#define MACHINE_U32(f) int f(u32 *a) { return numbers(ask("", #f, &text, "%s", ""), sizeof *a, 1, (void *[]){a}); }
MACHINE_TEXT(nvmlSystemGetDriverVersion)
MACHINE_TEXT(nvmlSystemGetNVMLVersion)
MACHINE_U32(nvmlSystemGetCudaDriverVersion)
MACHINE_U32(nvmlSystemGetCudaDriverVersion_v2)
MACHINE_U32(nvmlDeviceGetCount_v2)

int nvmlInitWithFlags(u32 flags)
{
    (void)flags;
    if (!references)
        load();
    references++;
    int code = permitted("", "nvmlInitWithFlags");
    references -= code != SUCCESS;
    return code;
}

int nvmlShutdown(void)
{
    int code = permitted("", "nvmlShutdown");
    references -= code == SUCCESS;
    return code;
}

const char *nvmlErrorString(int code)
{
    (void)code; /* nvidia-ml-py asks only for codes that it has no words for */
    return "words of the stand-in";
}

/* Handles. */
static int handle(struct device *found, Device parent, Device *out, const char *function)
{
    int code = permitted(found->name, function);
    found->parent = parent;
    *out = found;
    return code;
}

static Device gpu_at(u32 index)
{
    const char *count = peek("", "nvmlDeviceGetCount_v2");
    if (!count || index >= GPUS || index >= (u32)atoi(count))
        return NULL;
    snprintf(gpus[index].name, sizeof gpus->name, "%u", index);
    return &gpus[index];
}

static Device instance_at(u32 gpu, u32 slot)
{
    if (slot >= SLOTS)
        return NULL;
    struct device *found = &instances[gpu][slot];
    snprintf(found->name, sizeof found->name, "%u/%u", gpu, slot);
    return peek(found->name, "nvmlDeviceGetUUID") ? found : NULL;
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, Device *out)
{
    if (!references)
        return UNINITIALIZED;
    Device found = gpu_at(index);
    return found ? handle(found, NULL, out, "nvmlDeviceGetHandleByIndex_v2") : INVALID_ARGUMENT;
}

/* Find the GPU or MIG instance whose `known` text ends in `wanted`: a bus id may come with a shorter domain. */
static int find(const char *known, const char *wanted, Device *out, const char *function)
{
    if (!references)
        return UNINITIALIZED;
    for (u32 i = 0; gpu_at(i); i++)
        for (int slot = -1; slot < SLOTS; slot++) {
            Device found = slot < 0 ? gpu_at(i) : instance_at(i, (u32)slot);
            const char *own = found ? peek(found->name, known) : NULL;
            if (own && strlen(own) >= strlen(wanted) && !strcasecmp(own + strlen(own) - strlen(wanted), wanted))
                return handle(found, slot < 0 ? NULL : &gpus[i], out, function);
        }
    return NOT_FOUND;
}

#define HANDLE_BY(f, known) int f(const char *wanted, Device *out) { return find(known, wanted, out, #f); }
HANDLE_BY(nvmlDeviceGetHandleByUUID, "nvmlDeviceGetUUID")
HANDLE_BY(nvmlDeviceGetHandleBySerial, "nvmlDeviceGetSerial")
HANDLE_BY(nvmlDeviceGetHandleByPciBusId_v2, "nvmlDeviceGetPciInfo_v3")

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, u32 slot, Device *out)
{
    Device found = device && !device->parent ? instance_at((u32)(device - gpus), slot) : NULL;
    return found ? handle(found, device, out, "nvmlDeviceGetMigDeviceHandleByIndex") : NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device device, Device *out)
{
    *out = device->parent;
    return device->parent ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceIsMigDeviceHandle(Device device, u32 *out)
{
    *out = device->parent != NULL;
    return SUCCESS;
}

/* Lists: asked with no room first, then with enough. */
static u32 count_words(void)
{
    u32 count = *text != '\0';
    for (const char *c = text; *c; c++)
        count += *c == ' ';
    return count;
}

static int room(int code, u32 *count)
{
    u32 there = *count;
    if (code != SUCCESS)
        return code == UNSAID ? NOT_SUPPORTED : code;
    *count = count_words();
    return *count > there ? INSUFFICIENT_SIZE : SUCCESS;
}

static int processes(Device device, const char *function, u32 *count, nvmlProcessInfo_v2_t *out)
{
    int code = room(ask(device->name, function, &text, "%s", ""), count);
    const char *rest = text;
    for (u32 i = 0; code == SUCCESS && i < *count; i++) {
        out[i] = (nvmlProcessInfo_v2_t){.gpuInstanceId = ~0u, .computeInstanceId = ~0u};
        out[i].pid = (u32)strtoul(rest, (char **)&rest, 0);
        out[i].usedGpuMemory = strtoull(rest + 1, (char **)&rest, 0);
    }
    return code;
}

static int retired_pages(Device device, const char *function, u32 cause, u32 *count, u64 *addresses, u64 *times)
{
    int code = room(ask(device->name, function, &text, "%u", cause), count);
    const char *rest = text;
    for (u32 i = 0; code == SUCCESS && i < *count; i++) {
        addresses[i] = strtoull(rest, (char **)&rest, 0);
        if (times)
            times[i] = 0;
    }
    return code;
}

#define PROCESSES(f) int f(Device device, u32 *n, nvmlProcessInfo_v2_t *a) { return processes(device, #f, n, a); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

int nvmlDeviceGetRetiredPages(Device device, u32 cause, u32 *count, u64 *addresses)
{
    return retired_pages(device, __func__, cause, count, addresses, NULL);
}

int nvmlDeviceGetRetiredPages_v2(Device device, u32 cause, u32 *count, u64 *addresses, u64 *times)
{
    return retired_pages(device, __func__, cause, count, addresses, times);
}

/* Each field fails by itself; an answer is the type of the value, then the value. */
int nvmlDeviceGetFieldValues(Device device, int count, nvmlFieldValue_t *values)
{
    int code = permitted(device->name, "nvmlDeviceGetFieldValues");
    for (int i = 0; code == SUCCESS && i < count; i++) {
        nvmlFieldValue_t *value = &values[i];
        u32 id = value->fieldId, scope = value->scopeId;
        value->nvmlReturn = (u32)numbers(ask(device->name, "field", &text, "%u,%u", id, scope), 8, 0, NULL);
        if (value->nvmlReturn == SUCCESS) {
            char *number;
            value->valueType = (u32)strtoul(text, &number, 0);
            value->value = strtoull(number, NULL, 0);
        }
    }
    return code;
}
