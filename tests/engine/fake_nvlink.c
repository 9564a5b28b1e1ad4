/* The stand-in for NVML with NVLinks, for the real, unmodified pynvml.
 *
 * FAKE_NVLINKS=4         links of each GPU (0)
 * FAKE_NVLINK_DOWN=2     this link of GPU 0 is down
 * FAKE_NVML_NO_PEER=2    GPU 0 and this one may not read each other, though NVLink joins all (none)
 * FAKE_NVLINK_ERRORS=1   by how much the replay counter of link 1 of GPU 0 grows with every reading
 *
 * Compiled with -DNO_COUNTERS the driver has neither error counters nor throughput.
 */
#define OWN_FIELDS
#include "fake_nvml.c"

int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **gpu) {
    unsigned id = 0;
    if (sscanf(uuid, "GPU-%x", &id) != 1) return INVALID_ARGUMENT;
    *gpu = &gpus[id - 0xa0];
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, unsigned *active) {
    if ((int)link >= number("FAKE_NVLINKS", 0)) return INVALID_ARGUMENT;
    *active = !(gpu->index == 0 && (int)link == number("FAKE_NVLINK_DOWN", -1));
    return state(gpu);
}

int nvmlDeviceGetNvLinkVersion(Gpu *gpu, unsigned link, unsigned *version) {
    (void)link;
    *version = 6;
    return state(gpu);
}

int nvmlDeviceGetP2PStatus(Gpu *first, Gpu *second, int kind, unsigned *status) {
    *status = kind == 0 && first->index == 0 && second->index == number("FAKE_NVML_NO_PEER", -1) ? 4 : 0;
    return state(first) ? state(first) : state(second);
}

#ifndef NO_COUNTERS
static unsigned long long replays = 10;

int nvmlDeviceGetNvLinkErrorCounter(Gpu *gpu, unsigned link, int counter, unsigned long long *count) {
    int grows = gpu->index == 0 && link == 1 && counter == 0;
    if (grows) replays += number("FAKE_NVLINK_ERRORS", 0);
    *count = grows ? replays : 0;
    return counter == 2 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetFieldValues(Gpu *gpu, int count, Field *fields) {
    for (int i = 0; i < count; i++) {
        fields[i].answer = SUCCESS;
        fields[i].value = 1000 * (gpu->index + 1) + 10 * fields[i].scope + (fields[i].field == 139);
    }
    return SUCCESS;
}
#endif
