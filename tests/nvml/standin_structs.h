/*
 * The structures that NVML fills, each written once as a list of its members in their order.
 *
 *   N(T, type, name)    a number           S(T, size, name)    text           B(T, size, name)    bytes
 *
 * STRUCTS names them as nvidia-ml-py does (there with c_ before), so that a test can compare every size and offset.
 */
#include <stdint.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;
typedef int64_t i64;
typedef struct device *Device;

#define PCI_INFO(T, N, S, B)                                                                                          \
    S(T, 16, busIdLegacy) N(T, u32, domain) N(T, u32, bus) N(T, u32, device) N(T, u32, pciDeviceId)                   \
    N(T, u32, pciSubSystemId) S(T, 32, busId)
#define MEMORY(T, N, S, B) N(T, u64, total) N(T, u64, free) N(T, u64, used)
#define MEMORY_V2(T, N, S, B) N(T, u32, version) N(T, u64, total) N(T, u64, reserved) N(T, u64, free) N(T, u64, used)
#define BAR1_MEMORY(T, N, S, B) N(T, u64, bar1Total) N(T, u64, bar1Free) N(T, u64, bar1Used)
#define UTILIZATION(T, N, S, B) N(T, u32, gpu) N(T, u32, memory)
#define VIOLATION(T, N, S, B) N(T, u64, referenceTime) N(T, u64, violationTime)
#define HISTOGRAM(T, N, S, B) N(T, u32, max) N(T, u32, high) N(T, u32, partial) N(T, u32, low) N(T, u32, none)
#define REPAIR(T, N, S, B) N(T, u32, version) N(T, u32, bChannelRepairPending) N(T, u32, bTpcRepairPending)
#define SRAM_STATUS(T, N, S, B)                                                                                       \
    N(T, u32, version) N(T, u64, aggregateUncParity) N(T, u64, aggregateUncSecDed) N(T, u64, aggregateCor)            \
    N(T, u64, volatileUncParity) N(T, u64, volatileUncSecDed) N(T, u64, volatileCor) N(T, u64, aggregateUncBucketL2)  \
    N(T, u64, aggregateUncBucketSm) N(T, u64, aggregateUncBucketPcie) N(T, u64, aggregateUncBucketMcu)                \
    N(T, u64, aggregateUncBucketOther) N(T, u32, bThresholdExceeded)
#define MARGIN(T, N, S, B) N(T, u32, version) N(T, i32, marginTemperature)
#define TEMPERATURE(T, N, S, B) N(T, u32, version) N(T, u32, sensorType) N(T, i32, temperature)
#define FABRIC(T, N, S, B) B(T, 16, clusterUuid) N(T, u32, status) N(T, u32, cliqueId) N(T, u32, state)
#define FABRIC_V2(T, N, S, B) N(T, u32, version) FABRIC(T, N, S, B) N(T, u32, healthMask)
#define FABRIC_V3(T, N, S, B) FABRIC_V2(T, N, S, B) N(T, u8, healthSummary)
#define PLATFORM_V1(T, N, S, B)                                                                                       \
    N(T, u32, version) B(T, 16, ibGuid) B(T, 16, rackGuid) N(T, u8, chassisPhysicalSlotNumber)                        \
    N(T, u8, computeSlotIndex) N(T, u8, nodeIndex) N(T, u8, peerType) N(T, u8, moduleId)
#define PLATFORM_V2(T, N, S, B)                                                                                       \
    N(T, u32, version) B(T, 16, ibGuid) B(T, 16, chassisSerialNumber) N(T, u8, slotNumber) N(T, u8, trayIndex)        \
    N(T, u8, hostId) N(T, u8, peerType) N(T, u8, moduleId)
#define ATTRIBUTES(T, N, S, B)                                                                                        \
    N(T, u32, multiprocessorCount) N(T, u32, sharedCopyEngineCount) N(T, u32, sharedDecoderCount)                     \
    N(T, u32, sharedEncoderCount) N(T, u32, sharedJpegCount) N(T, u32, sharedOfaCount)                                \
    N(T, u32, gpuInstanceSliceCount) N(T, u32, computeInstanceSliceCount) N(T, u64, memorySizeMB)
#define PROCESS(T, N, S, B)                                                                                           \
    N(T, u32, pid) N(T, u64, usedGpuMemory) N(T, u32, gpuInstanceId) N(T, u32, computeInstanceId)
#define FIELD_VALUE(T, N, S, B)                                                                                       \
    N(T, u32, fieldId) N(T, u32, scopeId) N(T, i64, timestamp) N(T, i64, latencyUsec) N(T, u32, valueType)            \
    N(T, u32, nvmlReturn) N(T, u64, value)
#define EVENT_DATA(T, N, S, B)                                                                                        \
    N(T, Device, device) N(T, u64, eventType) N(T, u64, eventData) N(T, u32, gpuInstanceId) N(T, u32, computeInstanceId)

/* Name, members, and for those with a version the function that takes it and the version's number. */
#define STRUCTS(X)                                                                                                    \
    X(nvmlPciInfo_t, PCI_INFO, "", 0)                                                                                 \
    X(nvmlMemory_t, MEMORY, "", 0)                                                                                    \
    X(nvmlMemory_v2_t, MEMORY_V2, "nvmlDeviceGetMemoryInfo_v2", 2)                                                    \
    X(nvmlBAR1Memory_t, BAR1_MEMORY, "", 0)                                                                           \
    X(nvmlUtilization_t, UTILIZATION, "", 0)                                                                          \
    X(nvmlViolationTime_t, VIOLATION, "", 0)                                                                          \
    X(nvmlRowRemapperHistogramValues, HISTOGRAM, "", 0)                                                               \
    X(nvmlRepairStatus_t, REPAIR, "nvmlDeviceGetRepairStatus", 1)                                                     \
    X(nvmlEccSramErrorStatus_v1_t, SRAM_STATUS, "nvmlDeviceGetSramEccErrorStatus", 1)                                 \
    X(nvmlMarginTemperature_v1_t, MARGIN, "nvmlDeviceGetMarginTemperature", 1)                                        \
    X(nvmlTemperature_v1_t, TEMPERATURE, "nvmlDeviceGetTemperatureV", 1)                                              \
    X(nvmlGpuFabricInfo_t, FABRIC, "", 0)                                                                             \
    X(nvmlGpuFabricInfo_v2_t, FABRIC_V2, "nvmlDeviceGetGpuFabricInfoV", 2)                                            \
    X(nvmlGpuFabricInfo_v3_t, FABRIC_V3, "nvmlDeviceGetGpuFabricInfoV", 3)                                            \
    X(nvmlPlatformInfo_v1_t, PLATFORM_V1, "nvmlDeviceGetPlatformInfo", 1)                                             \
    X(nvmlPlatformInfo_v2_t, PLATFORM_V2, "nvmlDeviceGetPlatformInfo", 2)                                             \
    X(nvmlDeviceAttributes, ATTRIBUTES, "", 0)                                                                        \
    X(nvmlProcessInfo_v2_t, PROCESS, "", 0)                                                                           \
    X(nvmlFieldValue_t, FIELD_VALUE, "", 0)                                                                           \
    X(nvmlEventData_t, EVENT_DATA, "", 0)

#define MEMBER_NUMBER(T, type, name) type name;
#define MEMBER_TEXT(T, size, name) char name[size];
#define MEMBER_BYTES(T, size, name) u8 name[size];
#define DECLARE(T, MEMBERS, function, number)                                                                         \
    typedef struct {                                                                                                  \
        MEMBERS(T, MEMBER_NUMBER, MEMBER_TEXT, MEMBER_BYTES)                                                          \
    } T;
STRUCTS(DECLARE)
