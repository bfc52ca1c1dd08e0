/* State that a test shares with the library through a mapped file.
 * control.py reads this very file: one member per line, plain types, sizes as the #defines below. */
#include <stdint.h>

#define LAYOUT_VERSION 1
#define MAX_GPUS 16
#define MAX_MIGS 8
#define MAX_PROCESSES 32
#define MAX_FUNCTIONS 128
#define MAX_FIELDS 320
#define MAX_GPM 128
#define MAX_EVENTS 64
#define MAX_CLIENTS 32
#define TEXT_SIZE 96
#define FAILURE_SLOTS 2048

struct process {
    uint32_t pid;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint64_t used_bytes;
};

struct mig {
    uint32_t present;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t slices;
    uint32_t multiprocessors;
    uint64_t memory_mib;
    uint64_t memory_used;
    char uuid[TEXT_SIZE];
    double gpm[MAX_GPM];
};

struct gpu {
    uint32_t present;
    uint32_t lost;
    uint32_t generation;
    uint32_t minor;
    char uuid[TEXT_SIZE];
    char name[TEXT_SIZE];
    char pci_bus_id[TEXT_SIZE];
    uint32_t cuda_major;
    uint32_t cuda_minor;
    uint32_t gpu_util;
    uint32_t memory_util;
    uint64_t memory_total;
    uint64_t memory_reserved;
    uint64_t memory_used;
    uint32_t power_mw;
    uint32_t power_limit_mw;
    uint64_t energy_mj;
    uint64_t energy_rate_mw;
    uint32_t temperature;
    uint32_t memory_temperature;
    int32_t temperature_margin;
    uint32_t sm_clock_mhz;
    uint32_t memory_clock_mhz;
    uint32_t max_sm_clock_mhz;
    uint32_t max_memory_clock_mhz;
    uint64_t clock_event_reasons;
    uint64_t power_cap_ns;
    uint64_t sw_thermal_ns;
    uint64_t hw_thermal_ns;
    uint64_t power_brake_ns;
    uint64_t pcie_tx_bytes;
    uint64_t pcie_rx_bytes;
    uint64_t pcie_tx_rate;
    uint64_t pcie_rx_rate;
    uint32_t pcie_counter_bits;
    uint32_t pcie_tx_kbs;
    uint32_t pcie_rx_kbs;
    uint32_t pcie_generation;
    uint32_t pcie_width;
    uint32_t max_pcie_generation;
    uint32_t max_pcie_width;
    uint32_t pcie_replays;
    uint32_t nvlinks;
    uint64_t nvlink_tx_kib;
    uint64_t nvlink_rx_kib;
    uint64_t nvlink_tx_rate_kib;
    uint64_t nvlink_rx_rate_kib;
    uint64_t nvlink_replays;
    uint64_t nvlink_recoveries;
    uint64_t nvlink_crc_flit;
    uint64_t nvlink_crc_data;
    uint64_t ecc_corrected;
    uint64_t ecc_uncorrected;
    uint32_t remapped_corrected;
    uint32_t remapped_uncorrected;
    uint32_t remap_pending;
    uint32_t remap_failed;
    uint32_t retired_sbe;
    uint32_t retired_dbe;
    uint32_t recovery_action;
    uint32_t gpm_supported;
    double gpm[MAX_GPM];
    uint32_t gpm_return[MAX_GPM];
    uint32_t field_return[MAX_FIELDS];
    uint32_t field_limit;
    uint32_t process_count;
    struct process processes[MAX_PROCESSES];
    uint32_t mig_enabled;
    uint32_t mig_generation;
    struct mig migs[MAX_MIGS];
};

struct event {
    uint32_t gpu;
    uint32_t gpu_instance;
    uint64_t type;
    uint64_t data;
};

struct failure {
    uint32_t mode;
    uint32_t code;
    uint32_t delay_us;
    uint32_t after;
};

struct state {
    uint32_t version;
    uint32_t size;
    uint32_t gpu_count;
    uint32_t stop;
    uint64_t epoch_ns;
    uint32_t process_stride;
    uint32_t gpm_samples;
    uint32_t event_sets;
    char driver_version[TEXT_SIZE];
    uint32_t clients[MAX_CLIENTS];
    uint64_t calls[MAX_FUNCTIONS];
    struct failure failures_any[MAX_FUNCTIONS];
    struct failure failures[FAILURE_SLOTS];
    uint64_t event_head;
    struct event events[MAX_EVENTS];
    struct gpu gpus[MAX_GPUS];
};
