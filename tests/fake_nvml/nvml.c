/* A stand-in for libnvidia-ml.so.1: answers like the driver, from values that a test sets while it runs.
 * Struct layouts and semantics are those of NVIDIA's public header; a test can make any call of any GPU
 * fail, crawl, crash or never return. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "layout.h"

typedef uint32_t ret_t;
typedef struct handle *device_t;

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25 };
enum { FAIL_NONE, FAIL_RETURN, FAIL_SLOW, FAIL_HANG, FAIL_CRASH };
enum { SCOPE_ALL_LINKS = 0xFFFFFFFFu };
enum {
#define F(name) FN_##name,
#include "functions.def"
#undef F
    FUNCTIONS
};
_Static_assert(FUNCTIONS <= MAX_FUNCTIONS, "grow MAX_FUNCTIONS");
_Static_assert(FAILURE_SLOTS == MAX_FUNCTIONS * MAX_GPUS, "one failure per function and GPU");

struct handle { int gpu; int mig; uint32_t generation; };
struct sample { uint64_t taken_ns; int gpu; int gpu_instance; double gpm[MAX_GPM]; };
struct set { uint64_t cursor; uint64_t types[MAX_GPUS]; };

static struct state *state;
static int initialised;
static struct handle handles[MAX_GPUS][MAX_MIGS + 1];

static uint64_t now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

static int attach(void)
{
    const char *path = getenv("FAKE_NVML_STATE");
    if (state)
        return 1;
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return 0;
    void *at = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED)
        return 0;
    state = at;
    if (state->version != LAYOUT_VERSION || state->size != sizeof *state)
        state = NULL;
    return state != NULL;
}

/* Never returns while the test wants it so; the process ends with its parent, so that no test leaves one behind. */
static void hang(volatile struct failure *failure)
{
    pid_t parent = getppid();
    while (failure->mode == FAIL_HANG && !state->stop) {
        usleep(2000);
        if (getppid() != parent)
            _exit(0);
    }
}

static ret_t misbehave(struct failure *failure)
{
    if (failure->mode == FAIL_NONE)
        return OK;
    if (failure->after > 0) {
        failure->after--;
        return OK;
    }
    switch (failure->mode) {
    case FAIL_RETURN: return failure->code;
    case FAIL_SLOW: usleep(failure->delay_us); return OK;
    case FAIL_HANG: hang(failure); return OK;
    default: abort();
    }
}

static ret_t enter(int function)
{
    if (!attach())
        return DRIVER_NOT_LOADED;
    __atomic_add_fetch(&state->calls[function], 1, __ATOMIC_RELAXED);
    return misbehave(&state->failures_any[function]);
}

static ret_t enter_initialised(int function)
{
    ret_t ret = enter(function);
    if (ret == OK && !initialised)
        ret = UNINITIALIZED;
    return ret;
}

static int known(device_t device)
{
    return device >= &handles[0][0] && device <= &handles[MAX_GPUS - 1][MAX_MIGS];
}

static ret_t enter_device(int function, device_t device)
{
    ret_t ret = enter_initialised(function);
    if (ret != OK)
        return ret;
    if (!known(device))
        return INVALID_ARGUMENT;
    struct gpu *gpu = &state->gpus[device->gpu];
    ret = misbehave(&state->failures[function * MAX_GPUS + device->gpu]);
    if (ret != OK)
        return ret;
    if (!gpu->present || gpu->lost || handles[device->gpu][0].generation != gpu->generation)
        return GPU_IS_LOST;
    if (device->mig >= 0 && (device->generation != gpu->mig_generation || !gpu->migs[device->mig].present))
        return INVALID_ARGUMENT;
    return OK;
}

#define ENTER(name) do { ret_t r_ = enter_initialised(FN_##name); if (r_ != OK) return r_; } while (0)
#define DEVICE(name) \
    do { ret_t r_ = enter_device(FN_##name, device); if (r_ != OK) return r_; } while (0); \
    struct gpu *gpu = &state->gpus[device->gpu]; (void)gpu
#define WHOLE_GPU() do { if (device->mig >= 0) return NOT_SUPPORTED; } while (0)

static struct mig *slice(device_t device)
{
    return device->mig < 0 ? NULL : &state->gpus[device->gpu].migs[device->mig];
}

static uint64_t grown(uint64_t base, uint64_t per_second)
{
    double elapsed = (double)(now_ns(CLOCK_MONOTONIC) - state->epoch_ns) * 1e-9;
    return base + (uint64_t)(elapsed * (double)per_second);
}

static ret_t text(char *out, unsigned length, const char *value)
{
    if (strlen(value) + 1 > length)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

/* --- library ---------------------------------------------------------------------------------------- */

static ret_t start(int function)
{
    ret_t ret = enter(function);
    if (ret != OK)
        return ret;
    for (int i = 0; i < MAX_CLIENTS && !initialised; i++)
        if (state->clients[i] == 0 || state->clients[i] == (uint32_t)getpid()) {
            state->clients[i] = (uint32_t)getpid();
            break;
        }
    for (int i = 0; i < MAX_GPUS; i++)
        handles[i][0] = (struct handle){i, -1, state->gpus[i].generation};
    initialised++;
    return OK;
}

ret_t nvmlInitWithFlags(unsigned flags) { (void)flags; return start(FN_nvmlInitWithFlags); }
ret_t nvmlInit_v2(void) { return start(FN_nvmlInit_v2); }

ret_t nvmlShutdown(void)
{
    ENTER(nvmlShutdown);
    if (--initialised == 0)
        for (int i = 0; i < MAX_CLIENTS; i++)
            if (state->clients[i] == (uint32_t)getpid())
                state->clients[i] = 0;
    return OK;
}

const char *nvmlErrorString(ret_t ret) { return ret == OK ? "Success" : "Error of the fake driver"; }

ret_t nvmlSystemGetDriverVersion(char *out, unsigned length)
{
    ENTER(nvmlSystemGetDriverVersion);
    return text(out, length, state->driver_version);
}

ret_t nvmlSystemGetNVMLVersion(char *out, unsigned length)
{
    ret_t ret = enter(FN_nvmlSystemGetNVMLVersion);
    return ret == OK ? text(out, length, state->driver_version) : ret;
}

ret_t nvmlSystemGetCudaDriverVersion(int *out) { ENTER(nvmlSystemGetCudaDriverVersion); *out = 13000; return OK; }
ret_t nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER(nvmlSystemGetCudaDriverVersion_v2); *out = 13000; return OK; }

/* --- devices ---------------------------------------------------------------------------------------- */

ret_t nvmlDeviceGetCount_v2(unsigned *out)
{
    ENTER(nvmlDeviceGetCount_v2);
    *out = 0;
    for (unsigned i = 0; i < state->gpu_count; i++)
        *out += state->gpus[i].present != 0;
    return OK;
}

ret_t nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *out)
{
    ENTER(nvmlDeviceGetHandleByIndex_v2);
    for (unsigned i = 0; i < state->gpu_count; i++) {
        if (!state->gpus[i].present || index-- > 0)
            continue;
        *out = &handles[i][0];
        ret_t ret = misbehave(&state->failures[FN_nvmlDeviceGetHandleByIndex_v2 * MAX_GPUS + i]);
        return ret != OK ? ret : state->gpus[i].lost ? GPU_IS_LOST : OK;
    }
    return INVALID_ARGUMENT;
}

ret_t nvmlDeviceGetHandleByUUID(const char *uuid, device_t *out)
{
    ENTER(nvmlDeviceGetHandleByUUID);
    for (unsigned i = 0; i < state->gpu_count; i++)
        if (state->gpus[i].present && strcmp(uuid, state->gpus[i].uuid) == 0) {
            *out = &handles[i][0];
            return OK;
        }
    return NOT_FOUND;
}

ret_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, device_t *out)
{
    ENTER(nvmlDeviceGetHandleByPciBusId_v2);
    for (unsigned i = 0; i < state->gpu_count; i++)
        if (state->gpus[i].present && strcasecmp(id, state->gpus[i].pci_bus_id) == 0) {
            *out = &handles[i][0];
            return OK;
        }
    return NOT_FOUND;
}

ret_t nvmlDeviceGetUUID(device_t device, char *out, unsigned length)
{
    DEVICE(nvmlDeviceGetUUID);
    return text(out, length, device->mig < 0 ? gpu->uuid : slice(device)->uuid);
}

ret_t nvmlDeviceGetName(device_t device, char *out, unsigned length)
{
    DEVICE(nvmlDeviceGetName);
    return text(out, length, gpu->name);
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

ret_t nvmlDeviceGetPciInfo_v3(device_t device, struct pci *out)
{
    DEVICE(nvmlDeviceGetPciInfo_v3);
    memset(out, 0, sizeof *out);
    sscanf(gpu->pci_bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->bus_id, sizeof out->bus_id, "%.31s", gpu->pci_bus_id);
    snprintf(out->legacy, sizeof out->legacy, "%04x:%02x:%02x.0", out->domain & 0xFFFF, out->bus & 0xFF,
             out->device & 0xFF);
    return OK;
}

#define NUMBER(name, type, value) \
    ret_t name(device_t device, type *out) { DEVICE(name); WHOLE_GPU(); *out = (type)(value); return OK; }

NUMBER(nvmlDeviceGetIndex, unsigned, device->gpu)
NUMBER(nvmlDeviceGetMinorNumber, unsigned, gpu->minor)
NUMBER(nvmlDeviceGetPowerUsage, unsigned, gpu->power_mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, gpu->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, gpu->power_limit_mw)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, uint64_t, grown(gpu->energy_mj, gpu->energy_rate_mw))
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, gpu->clock_event_reasons)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, gpu->clock_event_reasons)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, gpu->pcie_generation)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, gpu->pcie_width)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, gpu->max_pcie_generation)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, gpu->max_pcie_generation)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, gpu->max_pcie_width)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, gpu->pcie_replays)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, 1)
NUMBER(nvmlDeviceGetPerformanceState, unsigned, 0)
NUMBER(nvmlDeviceGetDisplayActive, unsigned, 0)
NUMBER(nvmlDeviceGetComputeMode, unsigned, 0)

ret_t nvmlDeviceGetFanSpeed(device_t device, unsigned *out) { DEVICE(nvmlDeviceGetFanSpeed); (void)out; return NOT_SUPPORTED; }

ret_t nvmlDeviceGetEncoderUtilization(device_t device, unsigned *util, unsigned *period)
{
    DEVICE(nvmlDeviceGetEncoderUtilization);
    *util = 0, *period = 167000;
    return OK;
}

ret_t nvmlDeviceGetDecoderUtilization(device_t device, unsigned *util, unsigned *period)
{
    DEVICE(nvmlDeviceGetDecoderUtilization);
    *util = 0, *period = 167000;
    return OK;
}

ret_t nvmlDeviceGetSerial(device_t device, char *out, unsigned length)
{
    DEVICE(nvmlDeviceGetSerial);
    return text(out, length, "0");
}

ret_t nvmlDeviceGetEccMode(device_t device, unsigned *current, unsigned *pending)
{
    DEVICE(nvmlDeviceGetEccMode);
    *current = *pending = 1;
    return OK;
}

ret_t nvmlDeviceGetCudaComputeCapability(device_t device, int *major, int *minor)
{
    DEVICE(nvmlDeviceGetCudaComputeCapability);
    *major = (int)gpu->cuda_major, *minor = (int)gpu->cuda_minor;
    return OK;
}

struct utilization { unsigned gpu, memory; };

ret_t nvmlDeviceGetUtilizationRates(device_t device, struct utilization *out)
{
    DEVICE(nvmlDeviceGetUtilizationRates);
    if (gpu->mig_enabled)
        return NOT_SUPPORTED;
    out->gpu = gpu->gpu_util, out->memory = gpu->memory_util;
    return OK;
}

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

static void memory_of(device_t device, struct gpu *gpu, uint64_t *total, uint64_t *reserved, uint64_t *used)
{
    struct mig *mig = slice(device);
    *total = mig ? mig->memory_mib << 20 : gpu->memory_total;
    *reserved = mig ? 0 : gpu->memory_reserved;
    *used = mig ? mig->memory_used : gpu->memory_used;
}

ret_t nvmlDeviceGetMemoryInfo(device_t device, struct memory *out)
{
    uint64_t total, reserved, used;
    DEVICE(nvmlDeviceGetMemoryInfo);
    memory_of(device, gpu, &total, &reserved, &used);
    *out = (struct memory){total, total - used - reserved, used + reserved};
    return OK;
}

ret_t nvmlDeviceGetMemoryInfo_v2(device_t device, struct memory_v2 *out)
{
    uint64_t total, reserved, used;
    DEVICE(nvmlDeviceGetMemoryInfo_v2);
    if (out->version != (sizeof *out | 2u << 24))
        return VERSION_MISMATCH;
    memory_of(device, gpu, &total, &reserved, &used);
    *out = (struct memory_v2){out->version, total, reserved, total - used - reserved, used};
    return OK;
}

ret_t nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *out)
{
    DEVICE(nvmlDeviceGetTemperature);
    WHOLE_GPU();
    if (sensor != 0)
        return INVALID_ARGUMENT;
    *out = gpu->temperature;
    return OK;
}

struct margin { unsigned version; int value; };

ret_t nvmlDeviceGetMarginTemperature(device_t device, struct margin *out)
{
    DEVICE(nvmlDeviceGetMarginTemperature);
    WHOLE_GPU();
    if (out->version != (sizeof *out | 1u << 24))
        return VERSION_MISMATCH;
    out->value = gpu->temperature_margin;
    return OK;
}

ret_t nvmlDeviceGetClockInfo(device_t device, unsigned type, unsigned *out)
{
    DEVICE(nvmlDeviceGetClockInfo);
    WHOLE_GPU();
    *out = type == 2 ? gpu->memory_clock_mhz : gpu->sm_clock_mhz;
    return OK;
}

ret_t nvmlDeviceGetMaxClockInfo(device_t device, unsigned type, unsigned *out)
{
    DEVICE(nvmlDeviceGetMaxClockInfo);
    WHOLE_GPU();
    *out = type == 2 ? gpu->max_memory_clock_mhz : gpu->max_sm_clock_mhz;
    return OK;
}

ret_t nvmlDeviceGetPcieThroughput(device_t device, unsigned counter, unsigned *out)
{
    DEVICE(nvmlDeviceGetPcieThroughput);
    WHOLE_GPU();
    usleep(20000);
    *out = counter == 0 ? gpu->pcie_tx_kbs : gpu->pcie_rx_kbs;
    return OK;
}

ret_t nvmlDeviceGetNvLinkState(device_t device, unsigned link, unsigned *out)
{
    DEVICE(nvmlDeviceGetNvLinkState);
    WHOLE_GPU();
    if (link >= gpu->nvlinks)
        return INVALID_ARGUMENT;
    *out = 1;
    return OK;
}

ret_t nvmlDeviceGetNvLinkErrorCounter(device_t device, unsigned link, unsigned counter, uint64_t *out)
{
    DEVICE(nvmlDeviceGetNvLinkErrorCounter);
    WHOLE_GPU();
    uint64_t totals[] = {gpu->nvlink_replays, gpu->nvlink_recoveries, gpu->nvlink_crc_flit, gpu->nvlink_crc_data};
    if (link >= gpu->nvlinks || counter > 3)
        return INVALID_ARGUMENT;
    *out = link == 0 ? totals[counter] : 0;
    return OK;
}

ret_t nvmlDeviceGetTotalEccErrors(device_t device, unsigned type, unsigned counter, uint64_t *out)
{
    DEVICE(nvmlDeviceGetTotalEccErrors);
    WHOLE_GPU();
    (void)counter;
    *out = type == 0 ? gpu->ecc_corrected : gpu->ecc_uncorrected;
    return OK;
}

ret_t nvmlDeviceGetRemappedRows(device_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                unsigned *failed)
{
    DEVICE(nvmlDeviceGetRemappedRows);
    if (device->mig >= 0 || (gpu->mig_enabled && gpu->migs[0].present))
        return NOT_SUPPORTED;
    *corrected = gpu->remapped_corrected, *uncorrected = gpu->remapped_uncorrected;
    *pending = gpu->remap_pending, *failed = gpu->remap_failed;
    return OK;
}

ret_t nvmlDeviceGetRetiredPages(device_t device, unsigned cause, unsigned *count, uint64_t *pages)
{
    DEVICE(nvmlDeviceGetRetiredPages);
    WHOLE_GPU();
    unsigned have = cause == 0 ? gpu->retired_sbe : gpu->retired_dbe, room = *count;
    *count = have;
    if (have > room)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; pages && i < have; i++)
        pages[i] = 4096u * i;
    return OK;
}

/* --- field values ----------------------------------------------------------------------------------- */

enum { T_DOUBLE, T_UINT, T_ULONG, T_ULONGLONG, T_SLL, T_INT };
struct field {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    ret_t ret;
    union { double d; unsigned ui; unsigned long long ull; int si; } value;
};

static ret_t whole(struct field *f, uint64_t value) { f->type = T_ULONGLONG; f->value.ull = value; return OK; }
static ret_t small(struct field *f, uint32_t value) { f->type = T_UINT; f->value.ull = 0; f->value.ui = value; return OK; }

static ret_t per_link(struct gpu *gpu, struct field *f, uint64_t total, int aggregate)
{
    if (gpu->nvlinks == 0)
        return NOT_SUPPORTED;
    if (aggregate && f->scope == SCOPE_ALL_LINKS)
        return whole(f, total);
    return f->scope < gpu->nvlinks ? whole(f, total / gpu->nvlinks) : INVALID_ARGUMENT;
}

static ret_t pcie_bytes(struct gpu *gpu, struct field *f, uint64_t bytes)
{
    if (gpu->pcie_counter_bits == 0)
        return NOT_SUPPORTED;
    return gpu->pcie_counter_bits == 32 ? small(f, (uint32_t)bytes) : whole(f, bytes);
}

static ret_t on_links(struct gpu *gpu, struct field *f, uint64_t total)
{
    return gpu->nvlinks ? whole(f, total) : NOT_SUPPORTED;
}

static ret_t field_value(struct gpu *gpu, struct field *f)
{
    switch (f->id) {
    case 3: return whole(f, gpu->ecc_corrected);
    case 4: return whole(f, gpu->ecc_uncorrected);
    case 29: return whole(f, gpu->retired_sbe);
    case 30: return whole(f, gpu->retired_dbe);
    case 38: return on_links(gpu, f, gpu->nvlink_crc_flit);
    case 45: return on_links(gpu, f, gpu->nvlink_crc_data);
    case 52: return on_links(gpu, f, gpu->nvlink_replays);
    case 59: return on_links(gpu, f, gpu->nvlink_recoveries);
    case 74: return whole(f, gpu->power_cap_ns);
    case 82: return small(f, gpu->memory_temperature);
    case 83: case 191: return whole(f, grown(gpu->energy_mj, gpu->energy_rate_mw));
    case 91: return small(f, gpu->nvlinks);
    case 94: return small(f, gpu->pcie_replays);
    case 138: case 140: return per_link(gpu, f, grown(gpu->nvlink_tx_kib, gpu->nvlink_tx_rate_kib), 1);
    case 139: case 141: return per_link(gpu, f, grown(gpu->nvlink_rx_kib, gpu->nvlink_rx_rate_kib), 1);
    case 142: return small(f, gpu->remapped_corrected);
    case 143: return small(f, gpu->remapped_uncorrected);
    case 144: return small(f, gpu->remap_pending);
    case 145: return small(f, gpu->remap_failed);
    case 161: return per_link(gpu, f, gpu->nvlink_replays, 0);
    case 162: return per_link(gpu, f, gpu->nvlink_recoveries, 0);
    case 163: return per_link(gpu, f, gpu->nvlink_crc_flit, 0);
    case 185: case 186: return small(f, gpu->power_mw);
    case 190: return small(f, gpu->power_limit_mw);
    case 197: return pcie_bytes(gpu, f, grown(gpu->pcie_tx_bytes, gpu->pcie_tx_rate));
    case 198: return pcie_bytes(gpu, f, grown(gpu->pcie_rx_bytes, gpu->pcie_rx_rate));
    case 202: return per_link(gpu, f, grown(gpu->nvlink_tx_kib, gpu->nvlink_tx_rate_kib) << 10, 0);
    case 204: return per_link(gpu, f, grown(gpu->nvlink_rx_kib, gpu->nvlink_rx_rate_kib) << 10, 0);
    case 215: return per_link(gpu, f, gpu->nvlink_recoveries, 0);
    case 230: return small(f, gpu->recovery_action);
    case 269: return whole(f, gpu->sw_thermal_ns);
    case 270: return whole(f, gpu->hw_thermal_ns);
    case 271: return whole(f, gpu->power_brake_ns);
    default: return NOT_SUPPORTED;
    }
}

ret_t nvmlDeviceGetFieldValues(device_t device, int count, struct field *fields)
{
    DEVICE(nvmlDeviceGetFieldValues);
    long long now = (long long)(now_ns(CLOCK_REALTIME) / 1000);
    for (int i = 0; i < count && gpu->field_limit; i++)
        if (fields[i].id > gpu->field_limit)
            return INVALID_ARGUMENT; /* as a driver that knows fewer fields */
    for (int i = 0; i < count; i++) {
        struct field *f = &fields[i];
        f->timestamp = now, f->latency = 1;
        f->ret = f->id < MAX_FIELDS ? gpu->field_return[f->id] : INVALID_ARGUMENT;
        if (f->ret == OK)
            f->ret = device->mig >= 0 ? NOT_SUPPORTED : field_value(gpu, f);
    }
    return OK;
}

/* --- processes -------------------------------------------------------------------------------------- */

struct process_v2 { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
struct process_535 { struct process_v2 base; unsigned long long confidential; };

static ret_t list_processes(device_t device, struct gpu *gpu, unsigned *count, char *out, size_t stride)
{
    struct mig *mig = slice(device);
    unsigned have = 0, room = *count;
    for (unsigned i = 0; i < gpu->process_count && i < MAX_PROCESSES; i++) {
        struct process *p = &gpu->processes[i];
        if (mig && (p->gpu_instance != mig->gpu_instance || p->compute_instance != mig->compute_instance))
            continue;
        struct process_535 entry = {{p->pid, p->used_bytes, p->gpu_instance, p->compute_instance}, 0};
        if (out && have < room)
            memcpy(out + have * stride, &entry, stride);
        have++;
    }
    *count = have;
    return have > room ? INSUFFICIENT_SIZE : OK;
}

ret_t nvmlDeviceGetComputeRunningProcesses_v2(device_t device, unsigned *count, void *out)
{
    DEVICE(nvmlDeviceGetComputeRunningProcesses_v2);
    return list_processes(device, gpu, count, out, sizeof(struct process_v2));
}

ret_t nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, void *out)
{
    DEVICE(nvmlDeviceGetComputeRunningProcesses_v3);
    return list_processes(device, gpu, count, out, state->process_stride);
}

ret_t nvmlDeviceGetGraphicsRunningProcesses_v3(device_t device, unsigned *count, void *out)
{
    DEVICE(nvmlDeviceGetGraphicsRunningProcesses_v3);
    (void)out;
    *count = 0;
    return OK;
}

ret_t nvmlDeviceGetProcessUtilization(device_t device, void *out, unsigned *count, unsigned long long since)
{
    DEVICE(nvmlDeviceGetProcessUtilization);
    (void)out, (void)since;
    *count = 0;
    return NOT_FOUND;
}

/* --- MIG -------------------------------------------------------------------------------------------- */

ret_t nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending)
{
    DEVICE(nvmlDeviceGetMigMode);
    if (gpu->cuda_major < 8)
        return NOT_SUPPORTED;
    *current = *pending = gpu->mig_enabled;
    return OK;
}

ret_t nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *out)
{
    DEVICE(nvmlDeviceGetMaxMigDeviceCount);
    *out = gpu->mig_enabled ? MAX_MIGS - 1 : 0;
    return OK;
}

ret_t nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *out)
{
    DEVICE(nvmlDeviceGetMigDeviceHandleByIndex);
    if (!gpu->mig_enabled)
        return NOT_SUPPORTED;
    if (index >= MAX_MIGS || !gpu->migs[index].present)
        return NOT_FOUND;
    handles[device->gpu][index + 1] = (struct handle){device->gpu, (int)index, gpu->mig_generation};
    *out = &handles[device->gpu][index + 1];
    return OK;
}

ret_t nvmlDeviceIsMigDeviceHandle(device_t device, unsigned *out)
{
    DEVICE(nvmlDeviceIsMigDeviceHandle);
    *out = device->mig >= 0;
    return OK;
}

ret_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t device, device_t *out)
{
    DEVICE(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
    *out = &handles[device->gpu][0];
    return device->mig >= 0 ? OK : INVALID_ARGUMENT;
}

ret_t nvmlDeviceGetGpuInstanceId(device_t device, unsigned *out)
{
    DEVICE(nvmlDeviceGetGpuInstanceId);
    if (device->mig < 0)
        return NOT_SUPPORTED;
    *out = slice(device)->gpu_instance;
    return OK;
}

ret_t nvmlDeviceGetComputeInstanceId(device_t device, unsigned *out)
{
    DEVICE(nvmlDeviceGetComputeInstanceId);
    if (device->mig < 0)
        return NOT_SUPPORTED;
    *out = slice(device)->compute_instance;
    return OK;
}

struct attributes {
    unsigned multiprocessors, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
    unsigned long long memory_mib;
};

ret_t nvmlDeviceGetAttributes_v2(device_t device, struct attributes *out)
{
    DEVICE(nvmlDeviceGetAttributes_v2);
    struct mig *mig = slice(device);
    if (!mig)
        return NOT_SUPPORTED;
    *out = (struct attributes){mig->multiprocessors, 1, 1, 0, 0, 0, mig->slices, mig->slices, mig->memory_mib};
    return OK;
}

/* --- events ----------------------------------------------------------------------------------------- */

struct event_data { device_t device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };

ret_t nvmlDeviceGetSupportedEventTypes(device_t device, unsigned long long *out)
{
    DEVICE(nvmlDeviceGetSupportedEventTypes);
    *out = 0xE81F;
    return OK;
}

ret_t nvmlEventSetCreate(struct set **out)
{
    ENTER(nvmlEventSetCreate);
    struct set *set = calloc(1, sizeof *set);
    set->cursor = state->event_head;
    __atomic_add_fetch(&state->event_sets, 1, __ATOMIC_RELAXED);
    *out = set;
    return OK;
}

ret_t nvmlDeviceRegisterEvents(device_t device, unsigned long long types, struct set *set)
{
    DEVICE(nvmlDeviceRegisterEvents);
    WHOLE_GPU();
    set->types[device->gpu] |= types;
    return OK;
}

ret_t nvmlEventSetWait_v2(struct set *set, struct event_data *out, unsigned timeout_ms)
{
    ENTER(nvmlEventSetWait_v2);
    uint64_t until = now_ns(CLOCK_MONOTONIC) + timeout_ms * 1000000ull;
    do {
        while (set->cursor < __atomic_load_n(&state->event_head, __ATOMIC_ACQUIRE)) {
            struct event *e = &state->events[set->cursor++ % MAX_EVENTS];
            if (!(set->types[e->gpu] & e->type))
                continue;
            *out = (struct event_data){&handles[e->gpu][0], e->type, e->data, e->gpu_instance, 0xFFFFFFFFu};
            return OK;
        }
        if (timeout_ms)
            usleep(1000);
    } while (now_ns(CLOCK_MONOTONIC) < until);
    return TIMEOUT;
}

ret_t nvmlEventSetFree(struct set *set)
{
    ENTER(nvmlEventSetFree);
    __atomic_sub_fetch(&state->event_sets, 1, __ATOMIC_RELAXED);
    free(set);
    return OK;
}

/* --- GPM -------------------------------------------------------------------------------------------- */

struct gpm_support { unsigned version, supported; };
struct gpm_metric { unsigned id; ret_t ret; double value; struct { char *short_name, *long_name, *unit; } info; };
struct gpm_get { unsigned version, count; struct sample *first, *second; struct gpm_metric metrics[]; };

ret_t nvmlGpmQueryDeviceSupport(device_t device, struct gpm_support *out)
{
    DEVICE(nvmlGpmQueryDeviceSupport);
    if (out->version != 1)
        return VERSION_MISMATCH;
    out->supported = gpu->gpm_supported;
    return OK;
}

ret_t nvmlGpmSampleAlloc(struct sample **out)
{
    ENTER(nvmlGpmSampleAlloc);
    __atomic_add_fetch(&state->gpm_samples, 1, __ATOMIC_RELAXED);
    *out = calloc(1, sizeof **out);
    return OK;
}

ret_t nvmlGpmSampleFree(struct sample *sample)
{
    ENTER(nvmlGpmSampleFree);
    __atomic_sub_fetch(&state->gpm_samples, 1, __ATOMIC_RELAXED);
    free(sample);
    return OK;
}

static ret_t take(struct sample *sample, int gpu, int instance, const double *gpm)
{
    sample->taken_ns = now_ns(CLOCK_MONOTONIC);
    sample->gpu = gpu, sample->gpu_instance = instance;
    memcpy(sample->gpm, gpm, sizeof sample->gpm);
    return OK;
}

ret_t nvmlGpmSampleGet(device_t device, struct sample *sample)
{
    DEVICE(nvmlGpmSampleGet);
    if (!gpu->gpm_supported)
        return NOT_SUPPORTED;
    struct mig *mig = slice(device);
    return take(sample, device->gpu, mig ? (int)mig->gpu_instance : -1, mig ? mig->gpm : gpu->gpm);
}

ret_t nvmlGpmMigSampleGet(device_t device, unsigned instance, struct sample *sample)
{
    DEVICE(nvmlGpmMigSampleGet);
    if (!gpu->gpm_supported)
        return NOT_SUPPORTED;
    for (int i = 0; i < MAX_MIGS; i++)
        if (gpu->migs[i].present && gpu->migs[i].gpu_instance == instance)
            return take(sample, device->gpu, (int)instance, gpu->migs[i].gpm);
    return NOT_FOUND;
}

ret_t nvmlGpmMetricsGet(struct gpm_get *get)
{
    ENTER(nvmlGpmMetricsGet);
    struct sample *first = get->first, *second = get->second;
    if (get->version != 1)
        return VERSION_MISMATCH;
    if (!first || !second || first->taken_ns == 0 || first->taken_ns >= second->taken_ns || first->gpu != second->gpu)
        return INVALID_ARGUMENT;
    ret_t ret = misbehave(&state->failures[FN_nvmlGpmMetricsGet * MAX_GPUS + second->gpu]);
    for (unsigned i = 0; i < get->count && ret == OK; i++) {
        struct gpm_metric *m = &get->metrics[i];
        m->ret = m->id < MAX_GPM ? state->gpus[second->gpu].gpm_return[m->id] : INVALID_ARGUMENT;
        m->value = m->ret == OK ? second->gpm[m->id] : 0;
    }
    return ret;
}
