/* A stand-in for libnvidia-ml.so.1, for the real, unmodified pynvml.
 *
 * FAKE_NVML_GPUS=8         GPUs on the host (1)
 * FAKE_NVML_INIT=9         what nvmlInit answers (0; 9 is "driver not loaded")
 * FAKE_NVML_REASONS=0x48   clock reasons of GPU 0 (1, idle)
 * FAKE_NVML_LOST=1         this GPU is lost ...
 * FAKE_NVML_LOST_AFTER=2   ... once its clocks were asked for so many times (0)
 * FAKE_NVML_POWER=3        what reading power answers (0; 3 is "not supported", 4 "no permission")
 *
 * Compiled with -DOLD_DRIVER it lacks what drivers before 535 lack, and the energy counter.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, GPU_IS_LOST = 15 };
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

#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(Gpu *gpu, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(gpu, reasons);
}

int nvmlDeviceGetTotalEnergyConsumption(Gpu *gpu, unsigned long long *mj) {
    *mj = 1000000ULL * gpu->clocks_read;
    return state(gpu);
}
#endif
