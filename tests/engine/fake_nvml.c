/* A stand-in for libnvidia-ml.so.1, for the real, unmodified pynvml.
 *
 * FAKE_NVML_GPUS=8         GPUs on the host (1)
 * FAKE_NVML_INIT=9         what nvmlInit answers (0; 9 is "driver not loaded")
 * FAKE_NVML_REASONS=0x48   clock reasons of GPU 0 (1, idle)
 * FAKE_NVML_LOST=1         this GPU is lost ...
 * FAKE_NVML_LOST_AFTER=2   ... once its clocks were asked for so many times (0)
 * FAKE_NVML_POWER=3        what reading power answers (0; 3 is "not supported", 4 "no permission")
 * FAKE_NVML_SICK=2         this GPU is x8 at generation 4, has replays, row and SRAM errors, lowered limits, MIG, a
 *                          compute process, an older VBIOS, is not in the fabric, and asks for a reset (none)
 * FAKE_NVML_PLAIN=1        boards have no ECC, no row remapping, no MIG and no fabric (0)
 *
 * Compiled with -DOLD_DRIVER it lacks what drivers before 535 lack, and the energy counter, SRAM status and fabric;
 * with -DOWN_FIELDS values of fields, which who includes it has.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
typedef struct { int index, clocks_read; } Gpu;
static Gpu gpus[64];

static int number(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? (int)strtol(value, NULL, 0) : otherwise;
}

static int state(Gpu *gpu) {
    int lost = gpu->index == number("FAKE_NVML_LOST", -1) && gpu->clocks_read >= number("FAKE_NVML_LOST_AFTER", 0);
    return lost ? GPU_IS_LOST : SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return number("FAKE_NVML_INIT", SUCCESS); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the stand-in"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "535.104.05"); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12020; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = number("FAKE_NVML_GPUS", 1); return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
    gpus[index].index = index;
    *gpu = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(Gpu *gpu, char *text, unsigned size) {
    snprintf(text, size, "GPU-%08x-0000-0000-0000-000000000000", 0xa0 + gpu->index);
    return SUCCESS;
}

int nvmlDeviceGetName(Gpu *gpu, char *text, unsigned size) {
    (void)gpu;
    snprintf(text, size, "NVIDIA H100 80GB HBM3");
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(Gpu *gpu, int type, unsigned *mhz) {
    if (state(gpu)) return state(gpu);
    gpu->clocks_read += type == 1;
    *mhz = type == 1 ? 1980 - gpu->index : 2619;
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(Gpu *gpu, int type, unsigned *mhz) { (void)type; *mhz = 1980; return state(gpu); }
int nvmlDeviceGetEnforcedPowerLimit(Gpu *gpu, unsigned *mw) { *mw = 700000; return state(gpu); }

int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *mw) {
    *mw = 650500;
    return state(gpu) ? state(gpu) : number("FAKE_NVML_POWER", SUCCESS);
}

int nvmlDeviceGetTemperature(Gpu *gpu, int sensor, unsigned *celsius) {
    *celsius = 61 + gpu->index;
    return sensor ? INVALID_ARGUMENT : state(gpu);
}

typedef struct { unsigned long long total, free, used; } Memory;
int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *memory) {
    *memory = (Memory){85899345920ULL, 84825604096ULL, 1073741824ULL};
    return state(gpu);
}

typedef struct { unsigned gpu, memory; } Utilization;
int nvmlDeviceGetUtilizationRates(Gpu *gpu, Utilization *rates) {
    *rates = (Utilization){97, 40};
    return state(gpu);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu *gpu, unsigned long long *reasons) {
    *reasons = gpu->index == 0 ? number("FAKE_NVML_REASONS", 1) : 1;
    return state(gpu);
}

/* What the doctor reads. */

static int sick(Gpu *gpu) { return gpu->index == number("FAKE_NVML_SICK", -1); }
static int has_ecc(Gpu *gpu) { return state(gpu) ? state(gpu) : number("FAKE_NVML_PLAIN", 0) ? NOT_SUPPORTED : SUCCESS; }

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;

int nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *pci) {
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 0x1a + 17 * gpu->index);
    return state(gpu);
}

int nvmlDeviceGetSerial(Gpu *gpu, char *text, unsigned size) {
    snprintf(text, size, "16500000%05d", gpu->index);
    return state(gpu);
}

int nvmlDeviceGetVbiosVersion(Gpu *gpu, char *text, unsigned size) {
    snprintf(text, size, sick(gpu) ? "96.00.30.00.01" : "96.00.74.00.01");
    return state(gpu);
}

#define SAYS(name, value) int name(Gpu *gpu, unsigned *said) { *said = (value); return state(gpu); }
SAYS(nvmlDeviceGetCurrPcieLinkGeneration, 1)
SAYS(nvmlDeviceGetMaxPcieLinkGeneration, sick(gpu) ? 4 : 5)
SAYS(nvmlDeviceGetGpuMaxPcieLinkGeneration, 5)
SAYS(nvmlDeviceGetCurrPcieLinkWidth, sick(gpu) ? 8 : 16)
SAYS(nvmlDeviceGetMaxPcieLinkWidth, 16)
SAYS(nvmlDeviceGetPcieReplayCounter, 900 * sick(gpu))
SAYS(nvmlDeviceGetPersistenceMode, !sick(gpu))
SAYS(nvmlDeviceGetComputeMode, 3 * sick(gpu))
SAYS(nvmlDeviceGetPowerManagementLimit, sick(gpu) ? 500000 : 700000)
SAYS(nvmlDeviceGetPowerManagementDefaultLimit, 700000)

#define CLOCK(name, value) int name(Gpu *gpu, int type, unsigned *mhz) { (void)type; *mhz = (value); return state(gpu); }
CLOCK(nvmlDeviceGetApplicationsClock, sick(gpu) ? 1200 : 1980)
CLOCK(nvmlDeviceGetDefaultApplicationsClock, 1980)

#define PAIR(name, value) int name(Gpu *gpu, unsigned *now, unsigned *then) { *now = *then = (value); return has_ecc(gpu); }
PAIR(nvmlDeviceGetMigMode, sick(gpu))
PAIR(nvmlDeviceGetEccMode, 1)

int nvmlDeviceGetMemoryErrorCounter(Gpu *gpu, int type, int counter, int location, unsigned long long *count) {
    *count = 5 * sick(gpu);
    return type == 1 && counter == 1 && location == 7 ? has_ecc(gpu) : INVALID_ARGUMENT;
}

int nvmlDeviceGetRemappedRows(Gpu *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = *failed = 0, *uncorrected = *pending = sick(gpu);
    return has_ecc(gpu);
}

typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *processes) {
    unsigned room = *count;
    *count = sick(gpu);
    if (state(gpu) || !sick(gpu)) return state(gpu);
    if (!room) return INSUFFICIENT_SIZE;
    processes[0] = (Process){4711, 1ULL << 30, -1, -1};
    return SUCCESS;
}

int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned size) {
    snprintf(text, size, "/opt/app/train --token=secret");
    return pid == 4711 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetTotalEccErrors(Gpu *gpu, int uncorrected, int counter, unsigned long long *count) {
    *count = uncorrected ? (gpu->index == 1 ? gpu->clocks_read : 0) + 3 * sick(gpu) : 0;
    return counter ? INVALID_ARGUMENT : has_ecc(gpu);
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type;
    int answer;
    unsigned long long value;
} Field;

#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(Gpu *gpu, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(gpu, reasons);
}

int nvmlDeviceGetTotalEnergyConsumption(Gpu *gpu, unsigned long long *mj) {
    *mj = 1000000ULL * gpu->clocks_read;
    return state(gpu);
}

typedef struct {
    unsigned version;
    unsigned long long parity, secded, corrected, volatile_parity, volatile_secded, volatile_corrected;
    unsigned long long l2, sm, pcie, mcu, other;
    unsigned exceeded;
} Sram;

int nvmlDeviceGetSramEccErrorStatus(Gpu *gpu, Sram *sram) {
    sram->parity = sick(gpu), sram->secded = 4 * sick(gpu), sram->exceeded = sick(gpu);
    return has_ecc(gpu);
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
int nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, MemoryV2 *memory) {
    memory->total = 85899345920ULL, memory->reserved = 633339904ULL, memory->used = 1ULL << (sick(gpu) ? 32 : 20);
    return state(gpu);
}

#ifndef OWN_FIELDS
int nvmlDeviceGetFieldValues(Gpu *gpu, int count, Field *fields) {
    fields->answer = count == 1 && fields->field == 230 ? has_ecc(gpu) : INVALID_ARGUMENT, fields->value = sick(gpu);
    return state(gpu);
}
#endif

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
} Fabric;

int nvmlDeviceGetGpuFabricInfoV(Gpu *gpu, Fabric *fabric) {
    fabric->state = sick(gpu) ? 2 : 3, fabric->status = sick(gpu) ? 999 : 0;
    return has_ecc(gpu);
}
#endif
