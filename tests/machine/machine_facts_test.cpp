// What doctor reads and concludes, on machines made of a few files.
#include "machine/machine_facts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "millpond/base/units.hpp"

namespace millpond {
namespace {

using testing::ElementsAre;

// A folder that stands for a machine's root, removed at the end.
class fake_root {
 public:
  fake_root() {
    std::string name = (std::filesystem::temp_directory_path() / "millpond_root_XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  ~fake_root() { std::filesystem::remove_all(root_); }
  fake_root(const fake_root&) = delete;
  fake_root& operator=(const fake_root&) = delete;
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  [[nodiscard]] const std::string& path() const { return root_; }

 private:
  std::string root_;
};

constexpr const char* limits_text =
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max locked memory         8388608              unlimited            bytes     \n"
    "Max address space         unlimited            unlimited            bytes     \n"
    "Max open files            20000                20000                files     \n";

// Notes are facts; only these are findings.
std::vector<std::string> faults(const machine_facts& facts, const diagnosis_options& options = {}) {
  std::vector<std::string> ids;
  for (const machine_finding& each : diagnose(facts, options)) {
    if (each.severity != finding_severity::note) ids.push_back(each.id);
  }
  return ids;
}

// A machine with one good GPU and nothing wrong.
machine_facts good_machine() {
  machine_facts facts;
  facts.driver_version = 13000;
  facts.loaded_library = "/usr/lib/x86_64-linux-gnu/libcuda.so.1";
  facts.install.kernel_module = "580.159.03";
  facts.install.library = facts.loaded_library;
  for (const char* path : {"/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl"}) {
    facts.install.device_files.push_back({path, true, 0666});
  }
  facts.host.memlock_bytes = unlimited_bytes;
  facts.host.address_space_bytes = unlimited_bytes;
  facts.host.open_files = 20000;
  facts.host.huge_pages = "madvise";
  facts.host.max_maps = 65530;
  facts.host.overcommit = 0;
  facts.host.ram_bytes = 128 * GiB;
  gpu_facts gpu;
  gpu.info.name = "NVIDIA H200";
  gpu.info.total_bytes = 140 * GiB;
  gpu.info.granularity = gpu.info.host_granularity = 2 * MiB;
  gpu.info.virtual_memory = gpu.info.memory_pools = gpu.info.concurrent_managed_access = true;
  gpu.managed_memory = true;
  gpu.free_bytes = 139 * GiB;
  facts.gpus.push_back(gpu);
  return facts;
}

TEST(machine_facts, are_read_from_the_usual_files) {
  const fake_root root;
  root.write("/proc/sys/kernel/osrelease", "6.8.0-40-generic\n");
  root.write("/sys/devices/system/cpu/online", "0-7,16-23\n");
  root.write("/proc/meminfo",
             "MemTotal:       131072 kB\nMemAvailable:   65536 kB\nSwapTotal: 0 kB\n");
  root.write("/sys/devices/system/node/online", "0-1\n");
  root.write("/proc/sys/kernel/numa_balancing", "1\n");
  root.write("/proc/self/limits", limits_text);
  root.write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  root.write("/proc/sys/vm/nr_hugepages", "12\n");
  root.write("/proc/sys/vm/max_map_count", "65530\n");
  root.write("/proc/sys/vm/overcommit_memory", "1\n");
  const host_facts host = read_host_facts(root.path());
  EXPECT_EQ(host.kernel, "6.8.0-40-generic");
  EXPECT_EQ(host.cpus, 16u);
  EXPECT_EQ(host.ram_bytes, 128 * MiB);
  EXPECT_EQ(host.ram_available_bytes, 64 * MiB);
  EXPECT_EQ(host.swap_bytes, 0u);
  EXPECT_EQ(host.numa_nodes, 2u);
  EXPECT_EQ(host.numa_balancing, true);
  EXPECT_EQ(host.memlock_bytes, 8 * MiB);
  EXPECT_EQ(host.address_space_bytes, unlimited_bytes);
  EXPECT_EQ(host.open_files, 20000u);
  EXPECT_EQ(host.huge_pages, "madvise");
  EXPECT_EQ(host.reserved_huge_pages, 12u);
  EXPECT_EQ(host.max_maps, 65530u);
  EXPECT_EQ(host.overcommit, 1);
  EXPECT_FALSE(host.memory_limit_bytes);
}

TEST(machine_facts, without_sys_the_processors_are_counted_in_proc) {
  const fake_root root;
  root.write("/proc/stat", "cpu  9 9 9\ncpu0 4 4 4\ncpu1 3 3 3\ncpu7 2 2 2\nintr 1\ncpus 8\n");
  EXPECT_EQ(read_host_facts(root.path()).cpus, 3u);
  root.write("/sys/devices/system/cpu/online", "0-7\n");
  EXPECT_EQ(read_host_facts(root.path()).cpus, 8u);
}

TEST(machine_facts, an_empty_or_garbled_machine_is_not_guessed_at) {
  const fake_root root;
  root.write("/proc/meminfo", "MemTotal: lots\n");
  root.write("/proc/self/limits", "Max locked memory\n");
  root.write("/sys/kernel/mm/transparent_hugepage/enabled", "]broken[");
  root.write("/proc/sys/vm/max_map_count", "many");
  root.write("/proc/self/cgroup", "nonsense\n0::/\n");
  const host_facts host = read_host_facts(root.path());
  EXPECT_FALSE(host.ram_bytes);
  EXPECT_FALSE(host.memlock_bytes);
  EXPECT_FALSE(host.max_maps);
  EXPECT_FALSE(host.memory_limit_bytes);
  EXPECT_EQ(host.huge_pages, "");
  EXPECT_EQ(host.cpus, 0u);
  EXPECT_EQ(host.numa_nodes, 0u);
  machine_facts facts;
  facts.host = host;
  EXPECT_THAT(faults(facts), ElementsAre());
}

TEST(machine_facts,
     the_lowest_memory_limit_on_the_way_up_counts_in_both_versions_of_control_groups) {
  const fake_root two;
  two.write("/proc/self/cgroup", "0::/pod/container\n");
  two.write("/sys/fs/cgroup/pod/container/memory.max", "max\n");
  two.write("/sys/fs/cgroup/pod/memory.max", "4294967296\n");
  const host_facts host = read_host_facts(two.path());
  EXPECT_EQ(host.memory_limit_bytes, 4 * GiB);
  EXPECT_EQ(host.memory_limit_from, "/sys/fs/cgroup/pod/memory.max");

  const fake_root one;
  one.write("/proc/self/cgroup", "5:cpuacct,memory:/docker/abc\n1:cpu:/\n");
  one.write("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "1073741824\n");
  one.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(read_host_facts(one.path()).memory_limit_bytes, GiB);
}

TEST(machine_facts, the_drivers_files_are_found) {
  const fake_root root;
  root.write("/proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\n"
             "GCC version:  gcc version 12.2.0\n");
  for (const char* path : {"/dev/nvidia0", "/dev/nvidia12", "/dev/nvidiactl", "/dev/nvidia-uvm",
                           "/dev/nvidia-modeset", "/dev/null"}) {
    root.write(path, "");
  }
  root.write("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "");
  root.write("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "Y\n");
  root.write("/sys/module/nvidia_uvm/parameters/uvm_perf_prefetch_enable", "1\n");
  root.write("/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "");
  root.write("/proc/driver/nvidia/capabilities/gpu0/mig/gi2/access", "");
  const driver_install_facts install = read_install_facts(root.path());
  EXPECT_EQ(install.kernel_module, "580.159.03");
  EXPECT_TRUE(install.open_module);
  std::vector<std::string> paths;
  for (const device_file& file : install.device_files) paths.push_back(file.path);
  EXPECT_THAT(paths,
              ElementsAre("/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia12", "/dev/nvidiactl"));
  EXPECT_EQ(install.library, "/usr/lib/x86_64-linux-gnu/libcuda.so.1");
  EXPECT_EQ(install.hmm, false);
  EXPECT_EQ(install.mig_instances, 2u);
  EXPECT_FALSE(install.mps_running);
}

TEST(machine_rules, a_good_machine_has_no_finding) {
  EXPECT_THAT(faults(good_machine()), ElementsAre());
}

TEST(machine_rules, a_machine_without_a_gpu_has_notes_only) {
  machine_facts facts;
  facts.driver_failure = "the library cannot be loaded";
  facts.host.memlock_bytes = 64 * KiB;
  facts.host.huge_pages = "never";
  EXPECT_THAT(faults(facts), ElementsAre());
  EXPECT_GE(diagnose(facts).size(), 3u);
}

// One fault planted in a good machine gives that finding and no other.
struct planted {
  const char* id;
  void (*plant)(machine_facts&);
};

TEST(machine_rules, each_planted_fault_is_the_only_finding_and_has_a_reason) {
  const planted all[] = {
      {"library_missing",
       [](machine_facts& m) {
         m.gpus.clear();
         m.driver_failure = "cannot be loaded";
         m.install.library.clear();
       }},
      {"driver_failure",
       [](machine_facts& m) {
         m.gpus.clear();
         m.driver_failure = "too old: 12.4";
       }},
      {"no_device", [](machine_facts& m) { m.gpus.clear(); }},
      {"nvidiactl_missing", [](machine_facts& m) { m.install.device_files.pop_back(); }},
      {"uvm_missing",
       [](machine_facts& m) { m.install.device_files.erase(m.install.device_files.begin()); }},
      {"device_file_closed",
       [](machine_facts& m) { m.install.device_files[1] = {"/dev/nvidia0", false, 0600}; }},
      {"gpu_closed", [](machine_facts& m) { m.gpus[0].open_failure = "exclusive mode"; }},
      {"no_virtual_memory", [](machine_facts& m) { m.gpus[0].info.virtual_memory = false; }},
      {"no_concurrent_managed",
       [](machine_facts& m) { m.gpus[0].info.concurrent_managed_access = false; }},
      {"memory_nearly_full", [](machine_facts& m) { m.gpus[0].free_bytes = 3 * GiB; }},
      {"memlock_low", [](machine_facts& m) { m.host.memlock_bytes = 8 * MiB; }},
      {"address_space_limited", [](machine_facts& m) { m.host.address_space_bytes = 64 * GiB; }},
      {"open_files_low", [](machine_facts& m) { m.host.open_files = 256; }},
      {"memory_limit_low", [](machine_facts& m) { m.host.memory_limit_bytes = 512 * MiB; }},
      {"huge_pages_never", [](machine_facts& m) { m.host.huge_pages = "never"; }},
      {"overcommit_strict", [](machine_facts& m) { m.host.overcommit = 2; }},
      {"max_maps_low", [](machine_facts& m) { m.host.max_maps = 1000; }},
      {"numa_balancing",
       [](machine_facts& m) {
         m.host.numa_balancing = true;
         m.host.numa_nodes = 2;
       }},
      {"uvm_prefetch_off",
       [](machine_facts& m) { m.install.uvm["uvm_perf_prefetch_enable"] = "0"; }},
  };
  for (const planted& each : all) {
    machine_facts facts = good_machine();
    each.plant(facts);
    EXPECT_THAT(faults(facts), ElementsAre(each.id));
    for (const machine_finding& finding : diagnose(facts, {})) {
      EXPECT_FALSE(finding.what.empty());
      EXPECT_FALSE(finding.why.empty()) << finding.id;
    }
  }
}

TEST(machine_rules, a_larger_budget_makes_a_limit_too_low) {
  machine_facts facts = good_machine();
  facts.host.memlock_bytes = 2 * GiB;
  EXPECT_THAT(faults(facts), ElementsAre());
  EXPECT_THAT(faults(facts, {.pinned_budget_bytes = 4 * GiB}), ElementsAre("memlock_low"));
}

TEST(machine_rules, the_worst_comes_first) {
  machine_facts facts = good_machine();
  facts.host.huge_pages = "never";
  facts.gpus[0].info.pageable_memory_access = true;
  facts.gpus[0].open_failure.clear();
  facts.install.device_files[0].accessible = false;
  const std::vector<machine_finding> found = diagnose(facts);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].id, "device_file_closed");
  EXPECT_EQ(found[1].id, "huge_pages_never");
  EXPECT_EQ(found[2].id, "pageable_access");
}

TEST(machine_facts, this_machine_can_be_read) {
  machine_facts facts;
  facts.host = read_host_facts("");
  facts.install = read_install_facts("");
  EXPECT_FALSE(facts.host.kernel.empty());
  EXPECT_GT(facts.host.cpus, 0u);
  EXPECT_TRUE(facts.host.ram_bytes);
  static_cast<void>(diagnose(facts));
}

}  // namespace
}  // namespace millpond
