/* A stand-in for libnvidia-ml.so: LLMGW_STUB says what it plays ("2", "lost", "hang", "none"). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *play(void) { const char *p = getenv("LLMGW_STUB"); return p ? p : "2"; }

int nvmlInitWithFlags(unsigned flags) { return nvmlInit_v2(); }
int nvmlInit_v2(void) {
    if (!strcmp(play(), "none")) return 9; /* NVML_ERROR_DRIVER_NOT_LOADED */
    if (!strcmp(play(), "hang")) pause();
    return 0;
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "stub error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index == 1 && !strcmp(play(), "lost")) return 15; /* NVML_ERROR_GPU_IS_LOST */
    *handle = (void *)(long)(index + 1);
    return 0;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
    snprintf(text, length, "GPU-stub-%ld", (long)handle - 1);
    return 0;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned length) {
    snprintf(text, length, "Stub H200");
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *memory) {
    memory[0] = 141ULL << 30;
    memory[1] = 100ULL << 30;
    memory[2] = 41ULL << 30;
    return 0;
}
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *value) { return 3; /* not supported */ }
int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    snprintf(text, length, "999.1");
    return 0;
}
